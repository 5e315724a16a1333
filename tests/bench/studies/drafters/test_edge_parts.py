"""Drafts by their parts."""

import time

import pytest
import torch
import torch.nn.functional as F

from outrider_bench.core.acceptance import TREE
from outrider_bench.studies.drafters.edge_parts import (
    ATTENTION,
    CHOICE,
    HEAD,
    MLP,
    PARTS,
    PRODUCTS,
    REST,
    PartTimer,
    edge_parts,
    edge_parts_table,
)
from outrider_drafters.blocks.fused import FusedBlock, FusedMLP
from outrider_drafters.blocks.layers import BlockShape, LlamaBlock
from outrider_models import drafter_dir, target_dir


def busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_part_inside_another_counts_for_itself_alone():
    timer = PartTimer()
    with timer.timing(head_rows=7):
        busy(0.01)
        timer.enter(ATTENTION)
        busy(0.02)
        timer.enter(MLP)
        busy(0.04)
        timer.leave()
        timer.leave()
    seconds = [timer.seconds[part] for part in (REST, ATTENTION, MLP)]
    assert seconds == pytest.approx([0.01, 0.02, 0.04], abs=4e-3)
    assert timer.seconds[HEAD] == timer.seconds[PRODUCTS] == timer.seconds[CHOICE] == 0


def test_products_count_for_the_part_they_are_in_and_all_is_as_before_afterwards(monkeypatch):
    entered = []
    monkeypatch.setattr(
        PartTimer, "enter", lambda self, part, enter=PartTimer.enter: (entered.append(part), enter(self, part))
    )
    before = F.linear, FusedBlock.run, FusedMLP.run
    block = FusedBlock(LlamaBlock(BlockShape(16, 4, 2, 4, 20)).requires_grad_(False))
    x = torch.randn(2, 16)
    with torch.inference_mode(), PartTimer().timing(head_rows=7):
        F.linear(x, torch.randn(7, 16))
        F.linear(x, torch.randn(8, 16))
        block.run(x, block.shape.rope(torch.arange(2)), block.new_cache())
    assert entered[:3] == [HEAD, PRODUCTS, ATTENTION]
    # The MLP, its first product in PackedLinear and F.linear, its second in PackedLinear's plus as well.
    assert entered.count(MLP) == 6
    assert set(entered[3:]) == {ATTENTION, MLP}
    assert (F.linear, FusedBlock.run, FusedMLP.run) == before
    with pytest.raises(ZeroDivisionError), PartTimer().timing(head_rows=7):
        _ = 1 / 0
    assert (F.linear, FusedBlock.run, FusedMLP.run) == before


def test_every_part_of_a_draft_is_found():
    drafters = {name: str(drafter_dir(name)) for name in ("eagle2", "moa", "independent", "medusa")}
    threads = torch.get_num_threads()
    results = edge_parts(target_dir(), drafters, ["float32", "int8"], repeats=2)
    assert torch.get_num_threads() == threads
    assert [(r.drafter, r.weights) for r in results] == [(name, w) for name in drafters for w in ("float32", "int8")]
    for result in results:
        heads = result.drafter == "medusa"
        assert result.levels == TREE.levels or (heads and result.levels < TREE.levels)
        found = {part for part in PARTS if result.ms_by_part[part] > 0}
        expected = {HEAD, CHOICE, REST} | ({PRODUCTS} if heads else {ATTENTION, MLP})
        assert found >= expected
        assert bool(result.ms_by_part[ATTENTION]) != heads
        # Medians of parts do not add up to the median of the whole, but nearly.
        whole = sum(result.ms_by_part.values()) * result.levels
        assert whole == pytest.approx(result.ms_per_draft, rel=0.5)
    assert [r.of_first for r in results if r.weights == "float32"] == [1.0] * 4
    assert len(edge_parts_table(results).rows) == 8


def test_options_of_one_drafter_are_compared_with_its_first():
    plain = str(drafter_dir("eagle2"))
    first, second = edge_parts(target_dir(), {plain: plain, f"{plain},copy=3": f"{plain},copy=3"}, ["float32"], 1)
    assert first.of_first == 1.0
    assert second.of_first > 0
    assert second.of_first == pytest.approx(second.ms_per_draft / first.ms_per_draft, rel=0.5)
