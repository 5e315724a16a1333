"""All exhibits, in the order of the report."""

from outrider_bench.paper.exhibits import hydra, moa, moa_links, moa_quality

_ALL = (*moa.EXHIBITS, *moa_links.EXHIBITS, *moa_quality.EXHIBITS, *hydra.EXHIBITS)
EXHIBITS = {exhibit.name: exhibit for exhibit in _ALL}
