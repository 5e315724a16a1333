"""All exhibits, in the order of the report."""

from outrider_bench.paper.exhibits import moa, moa_links

EXHIBITS = {exhibit.name: exhibit for exhibit in (*moa.EXHIBITS, *moa_links.EXHIBITS)}
