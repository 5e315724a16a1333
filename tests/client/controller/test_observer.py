"""Measurements from verdicts, drafts and pings, and when the controller acts on them."""

from __future__ import annotations

import pytest

from outrider_client.controller.acceptance import AcceptanceEstimator
from outrider_client.controller.decision import ModeSelector
from outrider_client.controller.measurements import SPLIT, Choice, Measurements, ModeLimits
from outrider_client.controller.observer import CycleObserver
from outrider_proto.frames import Verdict
from outrider_proto.tree import DraftTree

ALL = ModeLimits(frozenset(("stream", "server-draft", *SPLIT)))
CHAIN = DraftTree.chain((1, 2, 3, 4))


def observer(mode="stop-and-wait", **declared):
    made = CycleObserver(ALL, Measurements(**declared))
    made.began(mode, 0.0)
    return made


def verdict(num_accepted=0, bonus=7, **more):
    return Verdict(1, tuple(range(num_accepted)), bonus, queue_us=2000, verify_us=30_000, **more)


def test_times():
    watched = observer(draft_level_ms=7.0)
    watched.record_rtt(0.05, 0.01)
    watched.record_drafting(0.020, levels=5)
    watched.record_drafting(0.040, levels=5, outcomes=8)
    watched.record_drafting(0.0, levels=0)
    watched.record_features(0.012)
    watched.record_transfer(250_000, 0.1)
    watched.record_verdict(1.0, verdict(2), CHAIN)
    measured = watched.measured()
    assert (measured.rtt_ms, measured.jitter_ms) == (50, 10)
    assert measured.verify_ms == 32
    assert measured.draft_level_ms == pytest.approx(4)
    assert measured.batch_factors == pytest.approx({8: 2.0})
    assert measured.features_ms == pytest.approx(12)
    assert measured.down_bps == pytest.approx(20e6)


def test_neither_a_hiccup_nor_waiting_in_a_pipeline_nor_a_stale_verdict_is_a_part_of_a_pass():
    watched = observer()
    for duration_us in [30_000] * 7 + [900_000] * 3:
        watched.record_verdict(1.0, Verdict(1, (), 7, verify_us=duration_us), CHAIN)
    assert watched.measured().verify_ms == 30
    watched = observer("pipelined")
    watched.record_verdict(1.0, Verdict(1, (), None, stale=True), CHAIN)
    assert (watched.num_tokens, watched.measured().is_cold) == (0, True)
    watched.record_verdict(1.0, verdict(), CHAIN)
    assert watched.measured().verify_ms == 30


@pytest.mark.parametrize(("row_ms", "slower"), [(2.0, 1), (2.0, 2), (0.0, 1)])
def test_passes_over_larger_trees_do_not_make_the_stream_slower(row_ms, slower):
    """One-token passes were timed beside trees of 4 nodes; the next trees have 16, and the machine may be slower."""
    watched = observer()
    watched.row_ms = row_ms
    watched.record_verdict(1.0, Verdict(1, (), 7, verify_us=int(1e3 * (20 + 4 * row_ms))), CHAIN)
    watched.began("stream", 1.0)
    for number in range(3):
        watched.record_verdict(1.0 + 0.025 * number, Verdict(1, (), 7))
    watched.began("stop-and-wait", 2.0)
    for _ in range(15):
        verify_us = int(1e3 * slower * (20 + 16 * row_ms))
        watched.row_ms = slower * row_ms
        watched.record_verdict(2.0, Verdict(1, (), 7, verify_us=verify_us), DraftTree.chain(tuple(range(16))))
    assert watched.measured().stream_ms == pytest.approx(slower * 25)


def test_the_first_verdict_of_the_servers_drafts_is_on_none():
    """Below the first root of an answer the server has nothing to draft from: no token of it was rejected."""
    watched = observer("server-draft")
    for _ in range(50):
        watched.record_verdict(1.0, verdict(tokens=(), draft_us=0), levels=3)
        watched.record_verdict(1.1, verdict(tokens=(4, 4, 4), draft_us=12_000), levels=3)
    measured = watched.measured()
    assert measured.acceptance[0] > 0.95
    assert measured.server_level_ms == 4


def test_acceptance_by_position():
    acceptance = AcceptanceEstimator()
    for number in range(300):
        acceptance.judged(3, (3, 1)[number % 2])
    first, second, third = acceptance.by_position
    assert first == pytest.approx(1.0, abs=0.03)
    assert second == pytest.approx(0.5, abs=0.05)
    assert third > 0.85


def test_a_bad_reputation_fades_while_no_one_drafts():
    watched = observer("stop-and-wait")
    for number in range(100):
        watched.record_verdict(0.1 * number, verdict(0), CHAIN)
    assert watched.measured().acceptance[0] < 0.1
    watched.began("stream", 10.0)
    for number in range(6000):
        watched.record_verdict(10 + 0.03 * number, verdict())
    assert watched.measured().acceptance[0] > 0.5


def split_of(watched):
    controller = ModeSelector(watched)
    watched.record_rtt(0.02, 0.0)
    watched.record_verdict(0.0, verdict(3), CHAIN)
    choice = controller.decide()
    watched.began(choice.mode, 0.0)
    return controller, choice


def test_controller_leaves_a_mode_that_is_no_longer_offered_at_once():
    watched = CycleObserver(ALL, Measurements(draft_level_ms=20.0, server_level_ms=1.0))
    controller, choice = split_of(watched)
    assert choice.mode == "server-draft"
    watched.limits = ModeLimits(frozenset(("stream",)))
    assert controller.decide() == Choice("stream")


def test_the_links_rate_is_seen_in_replies_until_a_prompt_shows_it():
    watched = CycleObserver(ModeLimits())
    for lag_s in (0.1, 0.4, 0.1, 0.4, 0.4, 0.001):  # now others delay them, now the client looked late
        watched.record_features(lag_s, 1000)
    assert watched.down_bps is None  # too few
    for lag_s in (0.1, 0.1, 0.4, 0.4, 0.1):
        watched.record_features(lag_s, 1000)
    assert watched.down_bps == watched.measured().down_bps == pytest.approx(80e3)
    watched.record_transfer(100_000, 4.0)
    assert watched.down_bps == pytest.approx(200e3)
