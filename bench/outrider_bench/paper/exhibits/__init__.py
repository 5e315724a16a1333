"""All exhibits, in the order of the report."""

from outrider_bench.paper.exhibits import moa, moa_links, moa_quality

EXHIBITS = {exhibit.name: exhibit for exhibit in (*moa.EXHIBITS, *moa_links.EXHIBITS, *moa_quality.EXHIBITS)}
