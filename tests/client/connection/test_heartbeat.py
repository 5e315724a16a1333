"""Round trips, heartbeats, backoff and the table of link states: time is a number here."""

from __future__ import annotations

import random

import pytest

from outrider_client.connection.heartbeat import Heartbeat, RttEstimator
from outrider_client.connection.link_state import IllegalTransition, LinkState, check_transition
from outrider_client.connection.policy import Backoff, Patience

R = 0.1
TICK = 0.05


def steady(floor_s: float = 0.0, factor: float = 1.0, rate_bps: float = 8e6) -> Heartbeat:
    """After many round trips of R."""
    rtt = RttEstimator()
    for _ in range(100):
        rtt.add(R)
    heartbeat = Heartbeat(rtt, Patience(floor_s, rate_bps), factor)
    heartbeat.verdict_arrived()
    return heartbeat


def test_pings_come_every_half_round_trip_and_pongs_measure_it():
    rtt = RttEstimator()
    heartbeat = Heartbeat(rtt, Patience())
    heartbeat.pong(heartbeat.ping(10.0), 10.25)
    heartbeat.pong(12345, 11.0)  # answers nothing
    assert rtt.mean_s == pytest.approx(0.25)
    heartbeat = steady()
    heartbeat.begin(1.0, 0)
    assert [heartbeat.should_ping(1.0 + R / 2 - early) for early in (0.001, 0.0)] == [False, True]
    heartbeat.ping(1.05)
    assert heartbeat.due_at == pytest.approx(1.05 + R / 2)
    heartbeat.heard(1.08)
    assert heartbeat.should_ping(1.12) is False  # frames put it off


def lost_after(heartbeat: Heartbeat, cut: float, start: float = 0.0) -> float:
    """Time from the cut to the loss's detection, when pongs come back R after pings sent before cut - R / 2."""
    now, pongs = start, []
    heartbeat.begin(now, 0)
    while not heartbeat.is_lost(now):
        if heartbeat.should_ping(now):
            nonce = heartbeat.ping(now)
            if now + R <= cut:
                pongs.append((now + R, nonce))
        now = min([heartbeat.due_at, *(at for at, _ in pongs)])
        while pongs and pongs[0][0] <= now:
            at, nonce = pongs.pop(0)
            heartbeat.heard(at)
            heartbeat.pong(nonce, at)
    return now - cut


@pytest.mark.parametrize("cut", [0.0, 0.01, 0.07, 0.33, 1.0, 1.234])
def test_loss_is_noticed_within_about_two_round_trips(cut):
    assert lost_after(steady(), cut) <= 2.1 * R


def test_patience_is_stretched_by_floor_bytes_and_false_alarms():
    assert steady().deadline_s == pytest.approx(1.5 * R, rel=0.01)
    assert steady(floor_s=0.5).deadline_s == 0.5
    assert steady(floor_s=0.5, factor=4).deadline_s == 2.0
    loaded = steady(floor_s=0.5)
    loaded.begin(0.0, 1_000_000)
    assert loaded.deadline_s == pytest.approx(1.5)
    loaded.begin(1.0, 0)
    assert loaded.deadline_s == 0.5


def test_rows_under_way_stretch_the_deadline_until_they_arrived():
    heartbeat = steady(floor_s=0.5)
    heartbeat.begin(0.0, 0, 1_000_000)
    heartbeat.begin(0.1, 0)  # a Cancel: the rows are still on their way
    assert heartbeat.deadline_s == pytest.approx(1.5)
    heartbeat.rows_arrived(400_000, last=False)
    assert heartbeat.deadline_s == pytest.approx(1.1)
    heartbeat.begin(0.2, 0, 100_000)
    assert heartbeat.deadline_s == pytest.approx(1.2)
    heartbeat.rows_arrived(100_000, last=True)
    assert heartbeat.deadline_s == 0.5


def test_a_jump_after_a_pause_is_no_loss():
    """Three times the round trip from one answer to the next, as after a change of networks."""
    heartbeat = steady(floor_s=0.2)
    heartbeat.begin(0.0, 0)
    heartbeat.heard(0.1)
    heartbeat.begin(3.0, 0)
    nonce = heartbeat.ping(3.05)
    assert not heartbeat.is_lost(3.05 + 3 * R)
    heartbeat.heard(3.05 + 3 * R)
    heartbeat.pong(nonce, 3.05 + 3 * R)
    heartbeat.verdict_arrived()
    assert heartbeat.deadline_s > 1.5 * 3 * R
    heartbeat.begin(3.5, 0)  # no pause: nothing more is forgiven
    assert heartbeat.deadline_s < 2 * 1.5 * 3 * R


def test_a_growing_round_trip_is_no_loss():
    """Each answer takes 1.45 times as long as the one before: more than the smoothed mean and spread allow for."""
    heartbeat, sample, now = steady(), R, 0.0
    for _ in range(6):
        heartbeat.begin(now, 0)
        nonce = heartbeat.ping(now)
        sample *= 1.45
        now += sample
        assert not heartbeat.is_lost(now)
        heartbeat.heard(now)
        heartbeat.pong(nonce, now)


@pytest.mark.parametrize(("num_wakes", "late_s"), [(1, 3.0), (10, 0.3), (12, 0.04)])
def test_running_late_ourselves_is_forgiven_and_a_loss_is_noticed_all_the_same(num_wakes, late_s):
    """A starved process wakes late each time, by much or by little, and finds the Pong only after all of that."""
    heartbeat, now = steady(), 0.05
    heartbeat.begin(0.0, 0)
    heartbeat.ping(now)
    for _ in range(num_wakes):
        now += TICK + late_s
        heartbeat.ran_late(late_s)
        assert not heartbeat.is_lost(now)
    assert heartbeat.is_lost(now + 3.0 + heartbeat.deadline_s)
    heartbeat.heard(now)
    assert heartbeat.is_lost(now + heartbeat.deadline_s)  # nothing is forgiven twice


def test_backoff_is_jittered_and_capped_and_sooner_after_silence():
    backoff = Backoff(first_s=0.1, factor=2.0, cap_s=2.0, silence_cap_s=0.5)
    generator = random.Random(1)
    for is_silent, cap in ((False, 2.0), (True, 0.5)):
        assert backoff.delay_s(0, generator, after_silence=is_silent) == 0.0
        for attempt in range(1, 100):
            longest = min(cap, 0.1 * 2 ** (attempt - 1))
            assert longest / 2 <= backoff.delay_s(attempt, generator, after_silence=is_silent) <= longest
    assert len({backoff.delay_s(9, generator) for _ in range(10)}) == 10
    assert Backoff(first_s=0.1, cap_s=0.2).delay_s(9, random.Random(1), after_silence=True) <= 0.2


@pytest.mark.parametrize(
    ("state", "following"), [("ONLINE", "ONLINE"), ("OFFLINE", "ONLINE"), ("CLOSED", "RESUMING"), ("CLOSED", "CLOSED")]
)
def test_what_the_table_does_not_list(state, following):
    with pytest.raises(IllegalTransition):
        check_transition(LinkState[state], LinkState[following])
