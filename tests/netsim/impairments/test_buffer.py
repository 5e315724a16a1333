"""The buffer before the rate: a limit in bytes on what waits there, and on nothing else."""

import random

import pytest
from driving import events_until, number, numbered, pushed_at

from outrider_netsim.impairments import Buffer, Delay, Packet, Rate, Sink
from outrider_netsim.impairments.path import Path
from outrider_netsim.profiles.profile import Direction
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace


def rate(limit_bytes):
    link = Rate(Sink(), 8000)
    link.buffer.set(limit_bytes, codel=False)
    return link


def test_what_does_not_fit_is_dropped_and_the_packet_being_sent_has_left():
    link = rate(2500)
    assert [n for _, n in pushed_at(link, [0.0] * 6)] == [0, 1, 2]
    assert link.buffer.dropped == 3


def test_a_small_packet_still_fits_where_a_large_one_does_not():
    buffer = Buffer(1000)
    for n, size in enumerate((900, 200, 100)):
        buffer.push(numbered(n, size), 0.0)
    assert [number(buffer.pop(0.0)), number(buffer.pop(0.0)), buffer.pop(0.0)] == [0, 2, None]


def test_there_is_room_the_moment_a_packet_begins_to_be_sent():
    link = rate(1000)
    assert [n for _, n in pushed_at(link, [0.0, 0.5, 0.75, 1.0, 1.5])] == [0, 1, 3]


def test_packets_that_are_only_delayed_do_not_count():
    limited = rate(1000)
    link = Delay(limited, Direction(delay_ms=10_000), random.Random(1))
    assert len(pushed_at(link, [2.0 * n for n in range(5)])) == 5
    assert limited.buffer.dropped == 0


def times_out(path, times, size_bytes=1500):
    """Times at which packets pushed then come out."""
    for n, now in enumerate(times):
        path.push(numbered(n, size_bytes), now)
    return [when for when, _ in events_until(path)]


def test_a_path_queues_for_as_long_as_its_profile_says():
    path = Path(Direction(delay_ms=50, rate_bps=12e6, queue_ms=100), 1)
    waited = [when - 0.051 for when in times_out(path, [0.0] * 500)]
    assert waited[-1] == pytest.approx(0.1)
    assert len(waited) == 101
    assert path.stats.dropped_by_queue == path.dropped == 399


def test_the_milliseconds_follow_the_rate_of_a_trace():
    trace = ConditionTrace("two rates", (0.0, 10.0), 20.0, rate_bps=(12e6, 1.2e6))
    path = Path(Direction(queue_ms=100, trace=trace), 1)
    assert len(times_out(path, [0.0] * 500)) == 101
    assert len(times_out(path, [10.0] * 500)) == 11


def test_opportunities_have_a_buffer_too():
    path = Path(Direction(queue_bytes=15_040, trace=DeliveryTrace("one in 10 ms", (10,))), 1)
    out = times_out(path, [0.0] * 50, 1514)
    assert len(out) == 9  # none is being sent before the first opportunity
    assert out[-1] == 0.09
    assert path.stats.dropped_by_queue == 41


def test_a_path_that_goes_back_to_packets_has_no_limit_in_bytes():
    path = Path(Direction(rate_bps=12e6, queue_bytes=3028), 1)
    path.set(Direction(rate_bps=12e6, queue_packets=20), 0.0)
    assert len(times_out(path, [0.0] * 50)) == 20


def test_an_observer_is_told_of_drops_with_their_time():
    path = Path(Direction(delay_ms=100, rate_bps=12e3, queue_bytes=3028), 1)
    told = []

    class Observer:
        def entered(self, packet, now):
            pass

        def left(self, packet, now):
            pass

        def dropped(self, packet, now, reason):
            told.append((number(packet), now, reason))

    path.observe(Observer())
    times_out(path, [0.0, 0.25, 0.5, 0.75])
    assert told == [(3, pytest.approx(0.85), "queue")]


def test_the_least_buffer_holds_two_full_packets():
    path = Path(Direction(rate_bps=1e6, queue_ms=1), 1)
    for n in range(4):
        path.push(Packet(str(n).encode(), 1514), 0.0)
    assert len(events_until(path)) == 3  # with the one being sent
