"""The report on edge weights."""

from outrider_bench.studies.drafters.edge_products import Product, products_table
from outrider_bench.studies.drafters.edge_weights import edge_weights, edge_weights_table
from outrider_models.core.embedded import drafter_dir, target_dir


async def test_bundles_by_type_of_weights():
    """Smaller, and as exact: what a drafter drafts never changes the answer."""
    results = await edge_weights(
        target_dir(), {"moa": str(drafter_dir("moa"))}, ["float32", "int8"], 1, lambda what, done, total: None
    )
    full, small = results
    assert (full.weights, small.weights) == ("float32", "int8")
    assert small.tensor_bytes < 0.35 * full.tensor_bytes
    assert full.not_exact == small.not_exact == 0
    assert min(full.ms_per_level, small.ms_per_level) > 0
    assert 0.9 < small.mean_acceptance_length / full.mean_acceptance_length < 1.1
    assert len(edge_weights_table(results).rows) == 2


def test_products_have_a_row_each():
    assert len(products_table([Product("int8", 32, 16, 544, {1: 0.1, 4: 0.2, 8: 0.3})]).rows) == 1
