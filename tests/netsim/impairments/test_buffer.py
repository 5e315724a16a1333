"""The buffer before the rate: a limit in bytes on what waits there, and on nothing else, and CoDel."""

import math
import random

import pytest
from driving import events_until, number, numbered, pushed_at

from outrider_netsim.core.errors import EngineError
from outrider_netsim.impairments.buffer import Buffer
from outrider_netsim.impairments.delay import Delay
from outrider_netsim.impairments.path import Path
from outrider_netsim.impairments.rate import Rate
from outrider_netsim.impairments.sink import Sink
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
    assert path.stats.dropped_by_queue == 399


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


PACKET_S = 0.001  # a packet of 1000 bytes at 8 Mbit/s


def flooded(limit_bytes, packets, spacing_s):
    """Drops of a buffer into which packets come too fast: [(time, number)], and [(time, number)] of what comes out."""
    link = Rate(Sink(), 8e6)
    link.buffer.set(limit_bytes, codel=True)
    drops = []
    link.buffer.on_drop = lambda packet, now: drops.append((now, int(packet.data)))
    return drops, pushed_at(link, [n * spacing_s for n in range(packets)])


def test_bursts_that_drain_within_the_interval_pass_whole():
    link = Rate(Sink(), 8e6)
    link.buffer.set(None, codel=True)
    out = []
    for burst in range(20):
        for n in range(90):  # waits up to 89 ms, and again under 5 ms within 100
            link.push(numbered(n), burst * 0.1)
        out += events_until(link, (burst + 1) * 0.1 - 1e-6)
    assert (len(out), link.buffer.dropped) == (1800, 0)


def test_a_standing_queue_is_dropped_from_at_a_rising_pace():
    """The first drop comes 100 ms after the wait passed 5 ms, the n-th 100 / sqrt(n) ms after the one before."""
    drops, out = flooded(None, 2000, PACKET_S / 1.5)
    # Packet n waits for n / 3 ms, and begins to be sent in the n-th ms.
    assert drops[0][0] == pytest.approx(0.015 + 0.1, abs=0.003)
    expected = drops[0][0]
    for n in range(1, 15):
        expected += 0.1 / math.sqrt(n)
        assert drops[n][0] == pytest.approx(expected, abs=0.0011)
    assert [n for _, n in drops] == sorted(n for _, n in drops)
    assert len(out) + len(drops) == 2000


def test_the_limit_still_drops_at_the_tail():
    drops, _ = flooded(10_000, 100, 0.0)
    assert [n for now, n in drops if now == 0.0] == list(range(11, 100))


def test_flows_are_the_kernels_alone():
    with pytest.raises(EngineError, match=r"aqm='fq_codel': .*use --engine kernel, or codel"):
        Path(Direction(rate_bps=1e6, aqm="fq_codel"), 1)
    path = Path(Direction(rate_bps=1e6), 1)
    with pytest.raises(EngineError, match="fq_codel"):
        path.set(Direction(rate_bps=1e6, aqm="fq_codel"), 0.0)
