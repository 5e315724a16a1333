"""All exhibits, in the order of the report."""

from outrider_bench.paper.exhibits import eagle3, moa, moa_links, moa_quality, own, own_drafting, routing

EXHIBITS = {
    exhibit.name: exhibit
    for module in (moa, moa_links, moa_quality, routing, eagle3, own, own_drafting)
    for exhibit in module.EXHIBITS
}
