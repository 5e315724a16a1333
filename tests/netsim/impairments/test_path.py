"""A whole direction: independent of polling, with counters that add up, and in agreement with netem's rule."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.impairments.impairment import Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Bursts, Direction
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace

TRACES = [
    None,
    DeliveryTrace("deliveries", (3, 4, 4, 40, 70)),
    ConditionTrace("all", (0.0, 0.03, 0.05), 0.09, delay_ms=(5, 0, 30), rate_bps=(1e6, 0, 2e5), loss=(0, 0.3, 0)),
    ConditionTrace("rate", (0.0, 0.02), 0.04, rate_bps=(1e5, 1e6)),
]
directions = st.builds(
    lambda direction, *others: replace(direction, **{k: v for other in others for k, v in other.items()}),
    st.builds(
        Direction,
        delay_ms=st.sampled_from([0.0, 10.0]),
        rate_bps=st.sampled_from([0.0, 2e5, 1e6]),
        base_ms=st.sampled_from([0.0, 4.5]),
        bursts=st.sampled_from([None, Bursts(0.2, 0.4)]),
        in_order=st.booleans(),
        trace=st.sampled_from(TRACES),
    ),
    st.sampled_from([{}, {"jitter_ms": 8.0, "distribution": "normal"}, {"jitter_ms": 8.0, "distribution": "pareto"}]),
    st.sampled_from([{}, {"coherence_ms": 20.0}, {"correlation": 0.5}]),
    st.sampled_from([{}, {}, {"duplicate": 0.3}, {"corrupt": 0.3, "slot_ms": 7.0}]),
    st.sampled_from([{}, {}, {"queue_bytes": 3500}, {"queue_ms": 90.0}, {"queue_ms": 900.0, "aqm": "codel"}])
    | st.builds(lambda packets: {"queue_packets": packets}, st.integers(1, 6)),
)
pauses = st.sampled_from([0.0, 0.0, 0.001, 0.0037, 0.01, 0.05, 0.2])
steps = st.lists(
    st.tuples(pauses, st.sampled_from(["push", "push", "push", "push", "cut", "restore"]) | directions), max_size=40
)
OUTAGES = (Outage(0.02, 0.05, every_s=0.11), Outage(0.03, 0.015, every_s=0.13, hold=True))


class Run:
    """A path on which the steps happen, with every packet's time of coming out as far as the asking shows it."""

    def __init__(self, direction, steps):
        self.path = Path(direction, "seed", OUTAGES, started_at=7.0)
        self.steps = steps
        self.out = []

    def ask(self, now):
        ready = self.path.pop_ready(now)
        self.out += [(now, packet.data) for packet in ready]

    def ask_at_events(self, now=float("inf")):
        while (when := self.path.next_event()) is not None and when <= now:
            self.ask(when)

    def go(self, before_step, at_end):
        now = 7.0
        for n, (pause, step) in enumerate(self.steps):
            earlier, now = now, now + pause
            before_step(earlier, now)
            match step:
                case "push":
                    self.path.push(Packet(b"%d" % n, 60 + 331 * n % 1450), now)
                case "cut":
                    self.path.outages.is_cut = True
                case "restore":
                    self.path.outages.is_cut = False
                case direction:
                    self.path.set(direction, now)
        at_end(now)
        return self.out


@given(direction=directions, steps=steps, seed=st.integers(0, 1000))
def test_asking_at_other_times_gives_the_same_packets_in_the_same_order_by_then(direction, steps, seed):
    at_events = Run(direction, steps)
    exact = at_events.go(lambda earlier, now: at_events.ask_at_events(now), lambda _: at_events.ask_at_events())
    end = exact[-1][0] if exact else 8.0

    rarely = Run(direction, steps)
    late = rarely.go(lambda *_: None, lambda now: rarely.ask(max(now, end)))
    assert [data for _, data in late] == [data for _, data in exact]
    assert rarely.path.stats == at_events.path.stats

    rng = random.Random(seed)
    asked = []

    def ask_somewhere(earlier, now):
        for when in sorted(rng.uniform(earlier, now) for _ in range(rng.randrange(3) if earlier < now else 0)):
            asked.append(when)
            anyhow.ask(when)

    anyhow = Run(direction, steps)
    seen = anyhow.go(ask_somewhere, lambda now: anyhow.ask(max(now, end)))
    assert [data for _, data in seen] == [data for _, data in exact]
    # Seen at the first question that was not too early; by place, as copies have the same data.
    for (due, _), (when, _) in zip(exact, seen, strict=True):
        assert due <= when
        assert not any(due <= other < when for other in asked)
    assert anyhow.path.next_event() is None


@given(direction=directions, steps=steps)
def test_every_packet_is_accounted_for(direction, steps):
    run = Run(direction, steps)
    out = run.go(lambda *_: None, lambda _: run.ask_at_events())
    stats = run.path.stats
    assert stats.packets_in == sum(step == "push" for _, step in steps)
    assert stats.packets_out == len(out)
    dropped = stats.lost + stats.dropped_by_queue + stats.dropped_by_outage
    assert stats.packets_in + stats.duplicated == stats.packets_out + dropped
    assert 2 * stats.bytes_in >= stats.bytes_out >= 60 * len(out)


def times_out(path, times, size_bytes):
    out = []
    for n, now in enumerate([*times, float("inf")]):
        while (when := path.next_event()) is not None and when <= now:
            out += [(int(packet.data), when) for packet in path.pop_ready(when)]
        if n < len(times):
            path.push(Packet(b"%d" % n, size_bytes), now)
    return out


@pytest.mark.parametrize(
    ("direction", "size_bytes", "load_bps"),
    [
        (Direction(300, rate_bps=100e6), 1514, 80e6),
        (Direction(300, rate_bps=20e6), 70, 19e6),
        (Direction(1000, 150, "normal", in_order=True), 1514, 40e6),
        (Direction(500, 60, "normal", rate_bps=50e6), 1000, 40e6),
    ],
)
def test_a_usual_queue_drops_nothing_below_the_rate_and_counts_what_it_drops_above(direction, size_bytes, load_bps):
    path = Path(direction, 1)
    times_out(path, [n * 8 * size_bytes / load_bps for n in range(4000)], size_bytes)
    assert path.stats.packets_out == 4000
    times_out(path, [1e6] * 60_000, 1514)
    assert path.stats.dropped_by_queue == 64_000 - path.stats.packets_out
    assert (path.stats.dropped_by_queue > 0) is bool(direction.rate_bps)


def test_in_order_is_netems_own_rate():
    """There a packet leaves at max(now + delay, when the one before it left) + size / rate."""
    direction = Direction(21, 19, "normal", rate_bps=20e6, in_order=True)
    times = [n * 0.0004 for n in range(1000)]
    rng = random.Random("4/delay")
    left, expected = 0.0, []
    for now in times:
        left = max(now + direction.delay_s(rng), left) + 1514 * 8 / 20e6
        expected.append(left)
    out = times_out(Path(direction, 4), times, 1514)
    assert [n for n, _ in out] == list(range(1000))
    assert [when for _, when in out] == pytest.approx(expected)


def test_reordered_packets_are_sent_in_their_new_order_and_never_faster_than_the_rate():
    out = times_out(Path(Direction(21, 19, "normal", rate_bps=20e6), 4), [n * 0.0007 for n in range(1000)], 1514)
    assert [n for n, _ in out] != sorted(n for n, _ in out)
    gaps = [second - first for (_, first), (_, second) in pairwise(out)]
    assert min(gaps) >= 1514 * 8 / 20e6 - 1e-12


def test_outages_and_traces_count_from_the_start():
    path = Path(Direction(trace=DeliveryTrace("one", (1000,))), 1, (Outage(1, 2),), started_at=100.25)
    assert times_out(path, [100.5, 102.5, 103.25], 1514) == [(0, 101.25), (2, 104.25)]


def test_a_handover_drops_nothing_and_delays_what_would_leave_during_it():
    outages = (Outage(0.5, 2, hold=True), Outage(0.5, 3))
    path = Path(Direction(delay_ms=100), 1, outages, started_at=100.0)
    assert times_out(path, [101.85, 101.95, 102.2, 102.45, 103.25], 100) == [
        (0, pytest.approx(101.95)),
        (1, 102.5),
        (2, 102.5),
        (3, pytest.approx(102.55)),
    ]
    assert path.stats.dropped_by_outage == 1
