"""Measurements of a client, and its choices based on them."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from outrider_client.connection.heartbeat import RttEstimator
from outrider_client.controller.mode_controller import MANY_ROWS, ModeController
from outrider_client.core.config import ClientConfig
from outrider_client.drafting.drafting_thread import AheadCost
from outrider_drafters.trees.predraft import TreeOutcome
from outrider_proto.frames import Decode, Draft, Opened, ServerTree, Verdict
from outrider_proto.tree import DraftTree

DRAFTING = SimpleNamespace(stale_tolerant=True, can_draft_ahead=True, levels_per_pass=1)
OPENED = Opened("s", False, 0, b"", 1024, 255, (0,), server_draft=True)
DECODE = Decode(1, 0, (), 1, 100)
DRAFT = Draft(1, 0, (), 1, DraftTree.chain((3, 4, 6, 7)))
TREES = Decode(1, 0, (), 1, 100, tree=ServerTree(4, 5, 16))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def controller(clock):
    controller = ModeController(DRAFTING, None, clock)
    controller.begin(ClientConfig(mode="auto"), None)
    return controller


def rtt(seconds: float) -> RttEstimator:
    estimator = RttEstimator()
    estimator.add(seconds)
    return estimator


def stream(controller, clock, gap_s: float, count: int = 12) -> None:
    """Tokens of a target that writes alone."""
    controller.enter_mode("stream")
    for _ in range(count):
        clock.now += gap_s
        controller.record_verdict(DECODE, Verdict(1, (), 5, verify_us=round(gap_s * 1e6)), stale=False)


def replies(controller, clock, lag_s: float, num_bytes: int, count: int = 20) -> None:
    """Four tokens each, a tenth of a second apart."""
    controller.enter_mode("stop-and-wait")
    for _ in range(count):
        clock.now += 0.1
        controller.record_verdict(DRAFT, Verdict(1, (0, 1, 2), 5, verify_us=30_000), stale=False)
        controller.record_features(lag_s, 4, num_bytes)


def test_features_that_fill_the_link_come_coarser_until_there_is_room(controller, clock, caplog):
    caplog.set_level(logging.INFO)
    controller.decide(OPENED, rtt(0.03))
    replies(controller, clock, 0.09, 4000)
    assert controller.codec is None
    controller.decide(OPENED, rtt(0.03))
    assert controller.codec == "leaner"
    assert "features in leaner: in lean they would take 0.90 of the link" in caplog.text
    replies(controller, clock, 0.067, 2960)  # the same, in fewer bytes
    controller.decide(OPENED, rtt(0.03))
    assert controller.codec == "leaner"
    controller.begin(ClientConfig(mode="stop-and-wait"), None)
    assert controller.codec is None  # whoever chooses a mode gets what the session was opened with
    controller.begin(ClientConfig(mode="auto"), None)
    replies(controller, clock, 0.01, 2960)
    controller.decide(OPENED, rtt(0.03))
    assert controller.codec is None


def test_a_prompts_features_that_take_longer_than_a_round_trip_do_not_come_soon(controller):
    assert not controller.should_decode_first(MANY_ROWS - 1, rtt(0.05))
    assert controller.should_decode_first(MANY_ROWS, rtt(0.05))  # nothing is known of the link
    assert not controller.arrive_within_rtt(1, rtt(0.05))
    controller.record_features(0.4, 500, 500_000)  # .8 ms a row
    assert [controller.should_decode_first(num_rows, rtt(0.05)) for num_rows in (50, 100)] == [False, True]
    assert [controller.arrive_within_rtt(num_rows, rtt(0.05)) for num_rows in (60, 70)] == [True, False]
    assert not controller.arrive_within_rtt(1, RttEstimator())


def test_a_batch_that_costs_too_much_is_made_smaller(clock):
    controller = ModeController(DRAFTING, None, clock)
    controller.begin(ClientConfig(mode="proactive"), None)
    assert controller.outcomes == 8
    controller.record_drafting(0.010, 5)
    cut = SimpleNamespace(cost=AheadCost(0.030, 6, 8), is_whole=False, rank_of=lambda outcome: None)
    controller.record_ahead_draft(cut, TreeOutcome(0, 5))
    assert controller.outcomes == 4  # five milliseconds a level instead of two
    controller.begin(ClientConfig(mode="proactive", outcomes=3), None)
    assert controller.outcomes == 3


def test_without_a_drafter_there_is_but_one_mode(clock):
    controller = ModeController(None, None, clock)
    controller.begin(ClientConfig(mode="auto", drafter="none"), None)
    for _ in range(3):
        assert controller.decide(OPENED, rtt(0.03)).mode == "stream"
        stream(controller, clock, 0.033)


def server_drafts(controller, clock, num_verdicts: int) -> None:
    """Three tokens at a time."""
    for _ in range(num_verdicts):
        clock.now += 0.05
        controller.record_verdict(
            TREES, Verdict(1, (), 5, tokens=(4, 4), verify_us=33_000, draft_us=20_000), stale=False
        )


def test_it_drafts_on_the_side_once_in_32_tokens_in_whatever_bunches_they_come(controller, clock):
    controller.decide(OPENED, rtt(0.03))
    controller.enter_mode("server-draft")
    server_drafts(controller, clock, 20)  # by now drafts are known
    controller.record_trial(100, DraftTree.chain((1,)))
    controller.record_text((0,) * 101)
    server_drafts(controller, clock, 10)
    assert not controller.wants_trial  # 30 tokens
    server_drafts(controller, clock, 1)
    assert controller.wants_trial  # 33
    controller.begin(ClientConfig(mode="auto"), None)
    controller.decide(OPENED, rtt(0.03))
    assert controller.wants_trial  # another answer's tokens count on
    controller.record_trial(133, DraftTree.chain((1,)))
    controller.record_text((0,) * 134)
    assert not controller.wants_trial
