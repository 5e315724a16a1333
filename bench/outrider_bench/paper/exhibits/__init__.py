"""All exhibits, in the order of the report."""

from outrider_bench.paper.exhibits import moa, moa_links, moa_quality, routing

EXHIBITS = {exhibit.name: exhibit for module in (moa, moa_links, moa_quality, routing) for exhibit in module.EXHIBITS}
