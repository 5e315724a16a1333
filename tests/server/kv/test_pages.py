"""Pages: nothing is copied, nothing of a former owner is left, and every byte is given back; the slot against a list of
rows, in pages and in buffers."""

import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider_proto.errors import UsageError
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.budget import KVShape, MemoryBudget, RowShape
from outrider_server.kv.buffers import BufferPool
from outrider_server.kv.memory import KVMemory
from outrider_server.kv.pages import PAGE, PagePool
from outrider_server.kv.slot import KVSlot

from .test_memory import ROW, SHAPE, check_rows, go_on, new

PAGE_BYTES = PAGE * ROW


def paged_memory(num_pages: int = 1000, sharing: str = "payer") -> KVMemory:
    return KVMemory(SHAPE, num_pages * PAGE_BYTES, sharing, layout="paged")


def pages_of(sequence: Sequence) -> list[int]:
    return list(sequence.slot.page_table())


@pytest.mark.parametrize(("device", "is_paged"), [("cpu", False), ("meta", True)])
def test_a_device_of_its_own_has_pages_by_default(device, is_paged):
    memory = KVMemory(replace(SHAPE, device=torch.device(device)), 10**6)
    assert isinstance(memory.pool, PagePool) == is_paged


def test_growing_copies_nothing():
    memory = paged_memory(sharing="none")
    sequence = new(memory, 50)
    before, free = pages_of(sequence), memory.budget.free_bytes
    go_on(sequence, 50, [7] * 400)
    assert pages_of(sequence)[: len(before)] == before
    assert free - memory.budget.free_bytes == (len(pages_of(sequence)) - len(before)) * PAGE_BYTES
    assert len(pages_of(sequence)) == -(-(450 + 3) // PAGE)
    check_rows(sequence)


def test_pages_become_a_shared_prefix_where_they_lie():
    memory = paged_memory()
    one = new(memory, 100)
    before = pages_of(one)
    two = new(memory, 100)
    assert [sequence.slot.start for sequence in (one, two)] == [96, 96]
    assert pages_of(one) == before
    assert pages_of(two)[:3] == before[:3]
    assert memory.budget.used_bytes == (3 + 1 + 1) * PAGE_BYTES
    check_rows(one, two)
    one.release()
    two.release()
    memory.free_all()
    assert memory.budget.used_bytes == 0


def test_a_page_is_zeros_for_its_next_owner():
    pool = PagePool(SHAPE, MemoryBudget(PAGE_BYTES))
    slot = KVSlot(pool)
    slot.reserve(PAGE)
    pool.arenas[0].fill_(float("nan"))
    slot.clear()
    again = pool.take(1, 0)
    assert not pool.arenas[0][:, again.pages].any()


def test_an_arena_without_a_limit_grows_and_keeps_its_rows():
    memory = KVMemory(SHAPE, sharing="none", layout="paged")
    first = new(memory, 300)
    with torch.inference_mode():
        others = [new(memory, 300, seed) for seed in range(1000, 5000, 1000)]
    go_on(others[0], 300, [5] * 40)
    check_rows(first, *others)
    assert memory.pool.num_pages >= 5 * 10


def test_features_of_another_device_are_not_in_its_budget():
    on_device = PagePool(replace(SHAPE, device=torch.device("meta")), MemoryBudget(sys.maxsize))
    assert on_device.bytes_of(1, 10) == PAGE_BYTES
    assert PagePool(SHAPE, MemoryBudget(sys.maxsize)).bytes_of(1, 10) == PAGE_BYTES + PAGE * 10 * 4


def test_an_arena_larger_than_the_machine_is_refused_in_a_line():
    shape = KVShape((RowShape(8, 128, 128),) * 32, torch.float32, torch.device("cpu"))
    with pytest.raises(UsageError, match=r"kv_memory=1.02e.03 TiB: cpu has no room for so many pages"):
        KVMemory(shape, 2**50, layout="paged")


UNLIKE = KVShape((RowShape(3, 4, 5),) * 2, torch.float32, torch.device("cpu"))


def stamped(stamps: list[int], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of one layer in which every row carries its stamp."""
    values = torch.tensor(stamps, dtype=torch.float32)[None, :, None] + 0.25 * layer
    return values.expand(3, -1, 4), -values.expand(3, -1, 5)


def check_slot(slot: KVSlot, model: list[int]) -> None:
    assert slot.length == len(model)
    keys, values = slot.rows(0, slot.length)
    for layer in range(len(UNLIKE.rows)):
        expected_keys, expected_values = stamped(model, layer)
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
    slot, model, stamp = KVSlot(pool(UNLIKE, MemoryBudget(sys.maxsize))), [], 0
    for chain, nodes, path, fails, kept in script:
        stamps = list(range(stamp, stamp := stamp + chain + nodes))
        slot.reserve(len(stamps))
        for layer in range(len(UNLIKE.rows)):
            seen_keys, seen_values = slot.write(layer, *stamped(stamps, layer))
            assert torch.equal(seen_keys, stamped(model + stamps, layer)[0])
            assert torch.equal(seen_values, stamped(model + stamps, layer)[1])
        if not fails:
            slot.commit(chain, path)
            model += stamps[:chain] + [stamps[chain + node] for node in path]
        check_slot(slot, model)
        model = model[: int(kept * len(model))]
        slot.truncate(len(model))
    check_slot(slot, model)
