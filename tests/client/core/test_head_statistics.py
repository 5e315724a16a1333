"""Accounts of the heads in one answer."""

from __future__ import annotations

import math

import pytest

from outrider_client.core.head_statistics import AcceptedMeans, HeadMeter, HeadUse
from outrider_drafters.routing.confidence import confidence_of
from outrider_drafters.routing.routed_drafter import RoutedDraft
from outrider_drafters.trees.grow import ScoredTree
from outrider_proto.tree import ROOT, DraftTree

TREE = DraftTree((4, 5, 6), (ROOT, ROOT, 0))
DRAFTED = ScoredTree(TREE, tuple(map(math.log, (0.5, 0.3, 0.4))), (1.0, 1.0, 2.5))


def routed(
    head: int, num_drafts: int, num_passes: int, skipped: bool = False, drafted: ScoredTree = DRAFTED
) -> RoutedDraft:
    return RoutedDraft(drafted, head, confidence_of(drafted), num_drafts, num_passes, skipped)


def test_overhead():
    meter = HeadMeter(["math", "chat"])
    for made in [routed(0, 2, 10), routed(1, 2, 10), routed(1, 1, 5, skipped=True), routed(1, 1, 5, skipped=True)]:
        meter.drafted(made)
    use = meter.snapshot(num_tokens=12)
    assert (use.drafts, use.passes, use.gate_skips) == (6, 30, 2)
    assert use.drafts_per_1000_tokens == pytest.approx(500)
    assert use.passes_per_1000_tokens == pytest.approx(2500)
    assert use.extra_drafts == pytest.approx(0.5)
    assert use.cycles == {"math": 1, "chat": 3}
    assert use.shares == {"math": 0.25, "chat": 0.75}


def test_a_cycle_without_a_draft_counts_for_no_head():
    meter = HeadMeter(["one"])
    meter.drafted(routed(0, 0, 0, drafted=ScoredTree()))
    use = meter.snapshot(3)
    assert (use.cycles, use.shares, use.extra_drafts) == ({"one": 0}, {"one": 0.0}, 0.0)


def test_confidence_is_split_by_the_verdict():
    meter = HeadMeter(["one"])
    meter.judged(DRAFTED, (0, 2))
    meter.judged(ScoredTree(TREE, DRAFTED.scores), ())  # one that measured no entropy
    use = meter.snapshot(5)
    assert (use.accepted_tokens, use.rejected_tokens) == (2, 4)
    assert use.confidence.accepted == pytest.approx((0.5 + 0.4) / 2)
    assert use.confidence.rejected == pytest.approx((0.3 + 0.5 + 0.3 + 0.4) / 4)
    assert use.entropy == AcceptedMeans(accepted=1.75, rejected=1.0)
    assert use.drafted_by_confidence == (0, 0, 0, 2, 2, 2, 0, 0, 0, 0)
    assert use.accepted_by_confidence == (0, 0, 0, 0, 1, 1, 0, 0, 0, 0)


def test_a_certain_token_counts_in_the_last_tenth():
    meter = HeadMeter(["one"])
    meter.judged(ScoredTree(DraftTree((4,), (ROOT,)), (1e-9,)), (0,))
    assert meter.snapshot(1).drafted_by_confidence[-1] == 1


def test_nothing_happened():
    assert HeadMeter().snapshot(0) == HeadUse()
