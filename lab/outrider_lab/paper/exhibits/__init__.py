"""All exhibits, in the order of the report."""

from outrider_lab.paper.exhibits import eagle3, hydra, moa, moa_links, moa_quality, own, own_drafting, routing

EXHIBITS = {
    exhibit.name: exhibit
    for module in (moa, moa_links, moa_quality, hydra, routing, eagle3, own, own_drafting)
    for exhibit in module.EXHIBITS
}
