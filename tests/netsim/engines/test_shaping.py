"""Shaped streams without a clock: reproducible, in order, with the profile's delay and rate, and complete."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.engines.shaping import HEADER_BYTES, MAX_TIMEOUT_S, SEGMENT_BYTES, ShapedStream, Shaper, timeout_s
from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.profiles.profile import Bursts, Direction, Profile

LOSSY = Direction(delay_ms=20, jitter_ms=5, distribution="normal", rate_bps=10e6, loss=0.2)


def shaper(direction: Direction, seed: int = 1, timeout_s: float = 0.2) -> Shaper:
    return Shaper(direction, str(seed), timeout_s)


def lone_delays_ms(direction: Direction, n: int, seed: int = 1) -> list[float]:
    """Delays of small packets so far apart that none waits for another."""
    flow = ShapedStream(shaper(direction, seed))
    delays = []
    for sent_at in range(0, 100 * n, 100):
        flow.push(bytes(100), float(sent_at))
        delays += [(when - sent_at) * 1000 for when, _ in drain(flow)]
    return delays


def drain(flow: ShapedStream) -> list[tuple[float, bytes]]:
    out = []
    while (when := flow.next_event()) is not None:
        out += [(when, data) for data in flow.pop_ready(when)]
    return out


@pytest.mark.parametrize("name", ["paper-5g", "paper-4g"])
def test_delay_has_the_profiles_mean_and_deviation(name):
    lossless = profile_named(name).up
    direction = Direction(lossless.delay_ms, lossless.jitter_ms, "normal", lossless.rate_bps, lossless.base_ms)
    delays = lone_delays_ms(direction, 20_000)
    wire_ms = (100 + HEADER_BYTES) * 8 / direction.rate_bps * 1000
    assert statistics.mean(delays) == pytest.approx(direction.mean_delay_ms + wire_ms, rel=0.02)
    assert statistics.stdev(delays) == pytest.approx(direction.delay_deviation_ms, rel=0.03)
    assert min(delays) >= direction.base_ms


def test_same_seed_same_times_other_seed_other_times():
    assert lone_delays_ms(LOSSY, 50, seed=7) == lone_delays_ms(LOSSY, 50, seed=7)
    assert lone_delays_ms(LOSSY, 50, seed=7) != lone_delays_ms(LOSSY, 50, seed=8)


def test_constant_delay_draws_nothing():
    assert lone_delays_ms(Direction(delay_ms=5, base_ms=2), 3) == pytest.approx([7, 7, 7])


DIRECTIONS = st.sampled_from(
    [
        profile_named("paper-5g").up,
        LOSSY,
        Direction(delay_ms=10, jitter_ms=30, distribution="pareto", queue_packets=3, rate_bps=1e6),
        Direction(delay_ms=1, bursts=Bursts(0.1, 0.3), in_order=True),
    ]
)


@given(
    direction=DIRECTIONS,
    chunks=st.lists(st.tuples(st.binary(min_size=1, max_size=5000), st.floats(0, 0.05)), max_size=20),
    seed=st.integers(0, 100),
)
def test_bytes_come_out_whole_and_in_order_however_they_are_sent(direction, chunks, seed):
    flow = ShapedStream(shaper(direction, seed))
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


@given(polls=st.lists(st.floats(0, 3), max_size=30), seed=st.integers(0, 20))
def test_it_does_not_matter_when_one_asks(polls, seed):
    asked, unasked = ShapedStream(shaper(LOSSY, seed)), ShapedStream(shaper(LOSSY, seed))
    for flow in (asked, unasked):
        flow.push(bytes(30_000), now=0.0)
    early = [data for when in sorted(polls) for data in asked.pop_ready(when)]
    late = drain(asked)
    assert late == drain(unasked)[len(early) :]


def test_a_transfer_takes_the_time_of_its_rate():
    rate_bps = 20e6
    flow = ShapedStream(shaper(Direction(rate_bps=rate_bps)))
    flow.push(bytes(100 * SEGMENT_BYTES), now=3.0)
    *_, (last, _) = drain(flow)
    assert last - 3.0 == pytest.approx(100 * (SEGMENT_BYTES + HEADER_BYTES) * 8 / rate_bps)


def test_flows_share_the_rate_but_not_the_order():
    shared = shaper(Direction(delay_ms=10, jitter_ms=10, distribution="normal", rate_bps=1e6))
    first, second = ShapedStream(shared), ShapedStream(shared)
    for _ in range(50):
        first.push(bytes(SEGMENT_BYTES), now=0.0)
        second.push(bytes(SEGMENT_BYTES), now=0.0)
    arrived = [drain(first), drain(second)]
    assert [len(out) for out in arrived] == [50, 50]
    last = max(when for out in arrived for when, _ in out)
    assert last > 0.999 * 100 * (SEGMENT_BYTES + HEADER_BYTES) * 8 / 1e6


def test_a_burst_waits_for_its_slowest_packet():
    direction = Direction(delay_ms=10, jitter_ms=10, distribution="normal")
    draws = lone_delays_ms(direction, 7)
    flow = ShapedStream(shaper(direction))
    flow.push(bytes(7 * SEGMENT_BYTES), now=0.0)
    *_, (last, _) = drain(flow)
    assert last * 1000 == pytest.approx(max(draws))


def test_a_new_direction_holds_for_what_is_pushed_later_and_nothing_overtakes():
    shaped = shaper(Direction(delay_ms=100))
    flow = ShapedStream(shaped)
    flow.push(b"slow", now=0.0)
    shaped.set(Direction(delay_ms=1), 0.2, now=0.005)
    flow.push(b"fast", now=0.01)
    flow.push(b"later", now=1.0)
    assert drain(flow) == [(0.1, b"slow"), (0.1, b"fast"), (1.001, b"later")]


def test_the_end_of_the_stream_travels_behind_the_bytes():
    flow = ShapedStream(shaper(Direction(delay_ms=10)))
    flow.push(b"x", now=0.0)
    flow.push(b"", now=0.0)
    assert flow.pop_ready(0.005) == []
    assert flow.pop_ready(0.011) == [b"x", b""]
    assert flow.next_event() is None


def test_a_lost_packet_is_a_stall_of_its_flow_and_of_no_other():
    shared = shaper(Direction(delay_ms=10), timeout_s=0.3)
    stalled, other = ShapedStream(shared), ShapedStream(shared)
    shared.set(Direction(delay_ms=10, loss=1), 0.3, now=0.0)
    stalled.push(b"lost", now=0.0)
    shared.set(Direction(delay_ms=10), 0.3, now=0.0)
    stalled.push(b"behind", now=0.1)
    other.push(b"on its way", now=0.1)
    assert other.pop_ready(0.11) == [b"on its way"]
    assert stalled.pop_ready(0.309) == []
    assert drain(stalled) == [(pytest.approx(0.31), b"lost"), (pytest.approx(0.31), b"behind")]
    assert shared.path.stats.lost == 1


def test_a_packet_lost_again_waits_twice_as_long_each_time():
    shaped = shaper(Direction(delay_ms=0, loss=1), timeout_s=0.2)
    flow = ShapedStream(shaped)
    flow.push(b"x", now=0.0)
    tries = []
    while len(tries) < 12:
        tries.append(flow.next_event())
        assert flow.pop_ready(tries[-1]) == []
    waits = [after - before for before, after in zip([0.0, *tries], tries, strict=False)]
    assert waits[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert waits[-1] == pytest.approx(MAX_TIMEOUT_S)


def test_a_full_queue_makes_bytes_wait_and_drops_none():
    shaped = shaper(Direction(rate_bps=1e6, queue_packets=2))
    flow = ShapedStream(shaped)
    flow.push(bytes(20 * SEGMENT_BYTES), now=0.0)
    *_, (last, _) = drain(flow)
    assert last == pytest.approx(20 * (SEGMENT_BYTES + HEADER_BYTES) * 8 / 1e6)
    assert shaped.path.stats.dropped_by_queue == 0


@pytest.mark.parametrize(
    ("direction", "expected_s"),
    [
        (Direction(delay_ms=20), 0.2),
        (Direction(delay_ms=300), 0.6),
        (Direction(delay_ms=300, jitter_ms=30, distribution="normal"), 0.6 + 4 * 0.03 * 2**0.5),
        (Direction(delay_ms=60_000, base_ms=60_000), MAX_TIMEOUT_S),
    ],
)
def test_the_timeout_follows_the_round_trip_and_is_never_short(direction, expected_s):
    assert timeout_s(Profile.symmetric("x", direction)) == pytest.approx(expected_s)


def test_the_mean_stall_is_that_of_the_rule():
    rng = random.Random(3)
    shaped = shaper(Direction(delay_ms=10, loss=0.1), seed=rng.random())
    delays = []
    for sent_at in range(0, 400_000, 100):
        flow = ShapedStream(shaped)
        flow.push(b"x", float(sent_at))
        delays += [when - sent_at for when, _ in drain(flow)]
    p = 0.1
    expected = 0.01 + p * 0.2 / (1 - 2 * p)  # sum over k of p^k * 0.2 * 2^(k-1)
    assert statistics.mean(delays) == pytest.approx(expected, rel=0.15)  # 4,000 draws: 3.5 deviations
