"""Pages: nothing is copied, nothing of a former owner is left, and every byte is given back."""

import sys
from dataclasses import replace

import pytest
import torch

from outrider_proto.errors import UsageError
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.budget import KVShape, MemoryBudget, OutOfKVMemory
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
    assert memory.used_bytes == (3 + 1 + 1) * PAGE_BYTES
    for sequence in (one, two):
        check_rows(sequence)
    one.release()
    two.release()
    memory.free_all()
    assert memory.used_bytes == 0


def test_a_single_session_keeps_the_prefix_it_begins_with():
    memory = paged_memory()
    new(memory, 100).release()
    one = new(memory, 100)
    assert one.slot.start == 96
    assert memory.used_bytes == (3 + 1) * PAGE_BYTES
    check_rows(one)


def test_a_text_is_cut_within_a_prefix_and_goes_on_elsewhere():
    memory = paged_memory()
    one, two = new(memory, 100), new(memory, 100)
    go_on(one, 70, [9] * 40)
    assert one.slot.start == 64
    for sequence in (one, two):
        check_rows(sequence)


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
    for sequence in (first, *others):
        check_rows(sequence)
    assert memory.pool.num_pages >= 5 * 10


def test_there_are_as_many_pages_as_the_budget_holds():
    memory = paged_memory(4, "none")
    one = new(memory, 3 * PAGE - 3)
    with pytest.raises(OutOfKVMemory):
        memory.pool.take(PAGE + 1, 0)
    assert memory.pool.take(PAGE, 0).capacity == PAGE
    assert memory.budget.free_bytes == 0
    check_rows(one)


def test_features_of_another_device_are_not_in_its_budget():
    on_device = PagePool(replace(SHAPE, device=torch.device("meta")), MemoryBudget(sys.maxsize))
    assert on_device.bytes_of(1, 10) == PAGE_BYTES
    assert PagePool(SHAPE, MemoryBudget(sys.maxsize)).bytes_of(1, 10) == PAGE_BYTES + PAGE * 10 * 4


def test_an_arena_larger_than_the_machine_is_refused_in_a_line():
    shape = KVShape(32, 8, 128, 128, torch.float32, torch.device("cpu"))
    with pytest.raises(UsageError, match=r"kv_memory=1.02e.03 TiB: cpu has no room for so many pages"):
        KVMemory(shape, 2**50, layout="paged")
