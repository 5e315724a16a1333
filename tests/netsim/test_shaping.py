"""Shaping in virtual time: reproducible, in order, with the profile's delay and rate."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.profile import Direction, profile_named
from outrider_netsim.shaping import HEADER_BYTES, SEGMENT_BYTES, Flow, Shaper


def shaper(direction: Direction, seed: int = 1) -> Shaper:
    return Shaper(direction, random.Random(seed))


def lone_delays_ms(direction: Direction, n: int, seed: int = 1) -> list[float]:
    """Delays of small packets so far apart that none waits for another."""
    shaped = shaper(direction, seed)
    return [(shaped.arrival(100, now=float(second)) - second) * 1000 for second in range(n)]


def drain(flow: Flow) -> list[tuple[float, bytes]]:
    out = []
    while (when := flow.next_event()) is not None:
        out += [(when, data) for data in flow.pop_ready(when)]
    return out


@pytest.mark.parametrize("name", ["paper-5g", "paper-4g"])
def test_delay_has_the_profiles_mean_and_deviation(name):
    direction = profile_named(name).up
    delays = lone_delays_ms(direction, 20_000)
    wire_ms = (100 + HEADER_BYTES) * 8 / direction.rate_bps * 1000
    assert statistics.mean(delays) == pytest.approx(direction.mean_delay_ms + wire_ms, rel=0.02)
    rng = random.Random(2)
    reference = [max(0.0, rng.gauss(direction.delay_ms, direction.jitter_ms)) for _ in range(20_000)]
    assert statistics.stdev(delays) == pytest.approx(statistics.stdev(reference), rel=0.03)
    assert min(delays) >= direction.base_ms


def test_same_seed_same_times_other_seed_other_times():
    direction = profile_named("paper-4g").down
    assert lone_delays_ms(direction, 50, seed=7) == lone_delays_ms(direction, 50, seed=7)
    assert lone_delays_ms(direction, 50, seed=7) != lone_delays_ms(direction, 50, seed=8)


def test_constant_delay_draws_nothing():
    assert lone_delays_ms(Direction(delay_ms=5, base_ms=2), 3) == pytest.approx([7, 7, 7])


@given(
    chunks=st.lists(st.tuples(st.binary(min_size=1, max_size=5000), st.floats(0, 0.05)), max_size=20),
    seed=st.integers(0, 100),
)
def test_bytes_come_out_whole_and_in_order_however_they_are_sent(chunks, seed):
    flow = Flow(shaper(profile_named("paper-5g").up, seed))
    now = 0.0
    for data, pause in chunks:
        now += pause
        flow.push(data, now)
    sent = b"".join(data for data, _ in chunks)
    assert flow.pending_bytes == len(sent)
    arrived = drain(flow)
    assert b"".join(data for _, data in arrived) == sent
    assert [when for when, _ in arrived] == sorted(when for when, _ in arrived)
    assert flow.pending_bytes == 0


def test_a_transfer_takes_the_time_of_its_rate():
    rate_bps = 20e6
    flow = Flow(shaper(Direction(rate_bps=rate_bps)))
    flow.push(bytes(100 * SEGMENT_BYTES), now=3.0)
    *_, (last, _) = drain(flow)
    assert last - 3.0 == pytest.approx(100 * (SEGMENT_BYTES + HEADER_BYTES) * 8 / rate_bps)


def test_flows_share_the_rate_but_not_the_order():
    shared = shaper(Direction(delay_ms=10, jitter_ms=10, distribution="normal", rate_bps=1e6))
    first, second = Flow(shared), Flow(shared)
    for _ in range(50):
        first.push(bytes(SEGMENT_BYTES), now=0.0)
        second.push(bytes(SEGMENT_BYTES), now=0.0)
    last = max(when for flow in (first, second) for when, _ in drain(flow))
    assert last >= 100 * (SEGMENT_BYTES + HEADER_BYTES) * 8 / 1e6


def test_a_burst_waits_for_its_slowest_packet():
    direction = Direction(delay_ms=10, jitter_ms=10, distribution="normal")
    draws = lone_delays_ms(direction, 7)
    flow = Flow(shaper(direction))
    flow.push(bytes(7 * SEGMENT_BYTES), now=0.0)
    *_, (last, _) = drain(flow)
    assert last * 1000 == pytest.approx(max(draws))


def test_a_new_direction_holds_for_what_is_pushed_later_and_nothing_overtakes():
    shaped = shaper(Direction(delay_ms=100))
    flow = Flow(shaped)
    flow.push(b"slow", now=0.0)
    shaped.direction = Direction(delay_ms=1)
    flow.push(b"fast", now=0.01)
    flow.push(b"later", now=1.0)
    assert drain(flow) == [(0.1, b"slow"), (0.1, b"fast"), (1.001, b"later")]


def test_the_end_of_the_stream_travels_behind_the_bytes():
    flow = Flow(shaper(Direction(delay_ms=10)))
    flow.push(b"x", now=0.0)
    flow.push(b"", now=0.0)
    assert flow.pop_ready(0.005) == []
    assert flow.pop_ready(0.011) == [b"x", b""]
    assert flow.next_event() is None
