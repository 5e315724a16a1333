"""Measures of an answer from what happened in it, and accounts of its heads."""

from __future__ import annotations

import math

import pytest

from outrider_client.core.head_statistics import AcceptedMeans, HeadMeter
from outrider_client.core.statistics import Meter, Statistics
from outrider_drafters.routing.confidence import confidence_of
from outrider_drafters.routing.routed_drafter import RoutedDraft
from outrider_drafters.trees.grow import ScoredTree
from outrider_proto.frames import Verdict
from outrider_proto.tree import ROOT, DraftTree


def snapshot(meter: Meter, now: float = 2.0, new_tokens: int = 10, unverified: int = 0) -> Statistics:
    return meter.snapshot(now, new_tokens=new_tokens, unverified=unverified, bytes_up=1, bytes_down=2, rtt_s=0.05)


def test_acceptance():
    meter = Meter(0.0)
    for num_nodes, num_accepted in [(10, 3), (10, 0), (10, 3), (5, 1)]:
        meter.judged(num_nodes, num_accepted)
    statistics = snapshot(meter)
    assert statistics.mean_acceptance_length == pytest.approx(1 + 7 / 4)
    assert statistics.draft_acceptance_rate == pytest.approx(7 / 35)
    assert statistics.acceptance_histogram == (1, 1, 0, 2)


def test_acceptance_of_a_drafted_tree_goes_to_its_head():
    meter = Meter(0.0, ["moa"])
    drafted = ScoredTree(DraftTree.chain((4, 5)), (-0.1, -0.7))
    meter.heads.drafted(RoutedDraft(drafted, 0, confidence_of(drafted), 1, 2, skipped=False))
    meter.judged(2, 1)
    meter.heads.judged(drafted, (0,))
    meter.copied += 1
    statistics = snapshot(meter, new_tokens=12, unverified=2)
    assert statistics.acceptance_histogram == (0, 1)
    assert statistics.copied == 1
    assert statistics.heads.cycles == {"moa": 1}
    assert statistics.heads.drafts_per_1000_tokens == pytest.approx(100)  # of tokens with the target's word
    assert statistics.heads.confidence.accepted == pytest.approx(math.exp(-0.1))


def test_split_is_per_verified_token():
    meter = Meter(0.0)
    meter.draft_s += 0.02
    meter.wait_s += 0.01
    meter.verdict(Verdict(1, (), 1, queue_us=2000, verify_us=8000), 0.05)
    split = snapshot(meter, new_tokens=12, unverified=2).split_ms
    parts = (split.draft, split.wire, split.queue, split.verify, split.wait)
    assert parts == pytest.approx((2.0, 4.0, 0.2, 0.8, 1.0))


def test_outages_count_once_each():
    meter = Meter(0.0)
    meter.went_offline(1.0)
    meter.went_offline(1.5)
    meter.came_back(3.0)
    meter.came_back(4.0)
    meter.went_offline(5.0)
    statistics = snapshot(meter, now=5.5)
    assert statistics.outages == 2
    assert statistics.offline_ms == 2500


TREE = DraftTree((4, 5, 6), (ROOT, ROOT, 0))
DRAFTED = ScoredTree(TREE, tuple(map(math.log, (0.5, 0.3, 0.4))), (1.0, 1.0, 2.5))


def routed(
    head: int, num_drafts: int, num_passes: int, skipped: bool = False, drafted: ScoredTree = DRAFTED
) -> RoutedDraft:
    return RoutedDraft(drafted, head, confidence_of(drafted), num_drafts, num_passes, skipped)


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
