"""The slot against a list of rows."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider_server.kv.budget import KVShape, MemoryBudget, RowShape
from outrider_server.kv.buffers import BufferPool
from outrider_server.kv.pages import PagePool
from outrider_server.kv.slot import KVSlot

SHAPE = KVShape(layers=2, kv_heads=3, key_dim=4, value_dim=5, dtype=torch.float32, device=torch.device("cpu"))


def rows(stamps: list[int], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of one layer in which every row carries its stamp."""
    values = torch.tensor(stamps, dtype=torch.float32)[None, :, None] + 0.25 * layer
    return values.expand(3, -1, 4), -values.expand(3, -1, 5)


def check(slot: KVSlot, model: list[int]) -> None:
    assert slot.length == len(model)
    keys, values = slot.rows(0, slot.length)
    for layer in range(SHAPE.layers):
        expected_keys, expected_values = rows(model, layer)
        assert torch.equal(keys[layer], expected_keys)
        assert torch.equal(values[layer], expected_values)


@st.composite
def passes(draw):
    """(chain rows, tree rows, accepted path, whether the pass fails before its commit, length kept of the result)"""
    chain = draw(st.integers(1, 90))
    nodes = draw(st.integers(0, 40))
    path = draw(st.lists(st.integers(0, nodes - 1), unique=True).map(sorted)) if nodes else []
    return chain, nodes, path, draw(st.booleans()), draw(st.floats(0, 1))


@given(st.lists(passes(), max_size=8), st.sampled_from([BufferPool, PagePool]))
def test_passes_commits_and_truncations_behave_as_on_a_list(script, pool):
    slot, model, stamp = KVSlot(pool(SHAPE, MemoryBudget(sys.maxsize))), [], 0
    for chain, nodes, path, fails, kept in script:
        stamps = list(range(stamp, stamp := stamp + chain + nodes))
        slot.reserve(len(stamps))
        for layer in range(SHAPE.layers):
            seen_keys, seen_values = slot.write(layer, *rows(stamps, layer))
            assert torch.equal(seen_keys, rows(model + stamps, layer)[0])
            assert torch.equal(seen_values, rows(model + stamps, layer)[1])
        if not fails:
            slot.commit(chain, path)
            model += stamps[:chain] + [stamps[chain + node] for node in path]
        check(slot, model)
        model = model[: int(kept * len(model))]
        slot.truncate(len(model))
    check(slot, model)


def test_a_slot_cannot_be_truncated_to_more_than_it_holds():
    with pytest.raises(ValueError, match="holds 0 rows"):
        KVSlot(SHAPE).truncate(1)


def test_the_price_of_a_token():
    assert SHAPE.bytes_per_token == 2 * 3 * (4 + 5) * 4


def test_a_row_of_layers_that_differ_takes_what_each_keeps():
    """Twice 3 heads of 4 + 5, once 2 heads of 8 + 6; the fourth layer reads the rows of the second."""
    shape = KVShape.of_layers(
        [RowShape(3, 4, 5), RowShape(2, 8, 6), RowShape(3, 4, 5), RowShape(2, 8, 6)],
        [(3, 1)],
        torch.float32,
        torch.device("cpu"),
    )
    assert shape.bytes_per_token == (2 * 3 * (4 + 5) + 2 * (8 + 6)) * 4
    for pool in (BufferPool, PagePool):
        budget = MemoryBudget(200 * shape.bytes_per_token)
        slot = KVSlot(pool(shape, budget))
        slot.reserve(32)
        assert slot.num_bytes == slot.buffer.capacity * shape.bytes_per_token <= budget.used_bytes
        keys, values = torch.rand(2, 1, 8), torch.rand(2, 1, 6)
        slot.write(1, keys, values)
        seen = slot.write(3, keys + 1, values + 1)  # what a layer without rows is given is another's
        assert [part.tolist() for part in seen] == [keys.tolist(), values.tolist()]


def test_layers_of_one_shape_are_uniform():
    device = torch.device("cpu")
    assert KVShape.of_layers([RowShape(3, 4, 5)] * 2, [], torch.float32, device) == SHAPE
    assert SHAPE.is_uniform
    assert not KVShape.of_layers([RowShape(3, 4, 5)] * 2, [(1, 0)], torch.float32, device).is_uniform
