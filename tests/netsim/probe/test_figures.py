"""Figures and verdicts from known samples: what must pass, what must be found, and the rate of false alarms."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.impairments import DelayDraws
from outrider_netsim.probe import expectations
from outrider_netsim.probe.figures import (
    burst_figure,
    deviation_figure,
    loss_figure,
    mean_figure,
    overtaken_figure,
    passed_bps,
    shape_figure,
    throughput_figure,
)
from outrider_netsim.probe.samples import LoadTimes, PacketTimes
from outrider_netsim.profiles.profile import Bursts, Direction
from outrider_netsim.profiles.traces import DeliveryTrace

FOUR_G = Direction(21, 19, "normal", 20e6, base_ms=4.5, loss=0.001)
BURSTY = replace(FOUR_G, loss=0.0, bursts=Bursts(p=0.01, r=0.25))
SIZE = 106


def crossed(direction, packets=2_000, spacing_s=0.005, seed=1, extra_ms=0.0):
    """Return the packet times of a perfect link of that direction."""
    rng = random.Random(seed)
    sent = [number * spacing_s for number in range(packets)]
    slow_s = (extra_ms + expectations.serialisation_ms(direction, SIZE)) / 1000
    draws = DelayDraws(direction, rng)
    arrivals = [when + draws.draw_s(when) + slow_s for when in sent]
    kept = [None if lost else when for when, lost in zip(arrivals, losses(direction, packets, rng), strict=True)]
    return PacketTimes(tuple(sent), tuple(kept))


def losses(direction, packets, rng):
    bursts = direction.bursts or Bursts(p=0.0, r=1.0, good=direction.loss)
    is_bad = False
    for _ in range(packets):
        is_bad = rng.random() < (1 - bursts.r if is_bad else bursts.p)
        yield rng.random() < (bursts.bad if is_bad else bursts.good)


def with_losses(pattern):
    """Return one packet per second; `x` is lost."""
    return PacketTimes(tuple(map(float, range(len(pattern)))), tuple(None if c == "x" else 0.5 for c in pattern))


def test_what_the_profile_alone_does_not_decide_is_measured_and_not_judged():
    times = crossed(FOUR_G)
    for direction in (replace(FOUR_G, slot_ms=10), replace(FOUR_G, duplicate=0.1)):
        figures = mean_figure(times, direction, SIZE, 0), deviation_figure(times, direction)
        assert {figure.verdict for figure in figures} == {"n/a"}
        assert all("decide" in figure.note for figure in figures)
    assert loss_figure(times, FOUR_G).verdict == "ok"


def test_corrupt_packets_count_as_lost_unless_a_copy_is_whole():
    assert expectations.missing_share(replace(FOUR_G, loss=0.1, corrupt=0.2)) == pytest.approx(1 - 0.9 * 0.8)
    assert expectations.missing_share(replace(FOUR_G, loss=0, corrupt=0.2, duplicate=1)) == pytest.approx(0.04)


CORRELATED = [{"correlation": 0.7}, {"coherence_ms": 20}]


@pytest.mark.parametrize("how", CORRELATED)
def test_a_true_link_with_correlated_delays_passes_and_another_one_does_not(how):
    direction = replace(FOUR_G, **how)
    for seed in range(20):
        times = crossed(direction, 4_000, seed=seed)
        assert mean_figure(times, direction, SIZE, 0).verdict != "off"
        assert deviation_figure(times, direction).verdict != "off"
        assert shape_figure(times, direction, SIZE).verdict == "ok"
        wrong = replace(direction, delay_ms=30)
        assert mean_figure(times, wrong, SIZE, 0).verdict == "off"


@pytest.mark.parametrize("how", CORRELATED)
def test_intervals_of_correlated_delays_hold_the_truth_as_often_as_they_say(how):
    """99 % of 200: fewer than 193 in one of 10,000 cases."""
    direction = replace(FOUR_G, loss=0, **how)
    held = 0
    for seed in range(200):
        figure = mean_figure(crossed(direction, 1_000, seed=seed), direction, SIZE, 0)
        held += figure.interval.meets(figure.expected, figure.expected)
    assert held >= 193


def test_overtaking_of_coherent_delays_is_expected_as_it_is_measured():
    direction = replace(FOUR_G, loss=0, coherence_ms=50)
    times = crossed(direction, 40_000, 0.0005)
    figure = overtaken_figure(times, direction, 0)
    independent = expectations.expected_overtaken(times.sent_s, FOUR_G, 0)
    assert figure.verdict == "ok"
    assert figure.expected < independent - 0.1


@pytest.mark.parametrize("distribution", ["normal", "pareto", "uniform"])
def test_a_true_link_passes(distribution):
    direction = replace(FOUR_G, distribution=distribution)
    times = crossed(direction)
    assert mean_figure(times, direction, SIZE, 0).verdict == "ok"
    assert deviation_figure(times, direction).verdict == "ok"
    assert shape_figure(times, direction, SIZE).verdict == "ok"


def test_a_link_that_is_five_milliseconds_slow_is_off():
    times = crossed(FOUR_G, extra_ms=5)
    assert mean_figure(times, FOUR_G, SIZE, 0).verdict == "off"
    assert deviation_figure(times, FOUR_G).verdict == "ok"


def test_with_few_packets_the_same_is_unclear():
    assert mean_figure(crossed(FOUR_G, packets=20, extra_ms=5), FOUR_G, SIZE, 0).verdict == "unclear"


def test_a_uniform_jitter_of_the_same_mean_and_deviation_is_found_by_its_shape():
    true = Direction(80, 19, "normal")
    times = crossed(replace(true, distribution="uniform"))
    assert mean_figure(times, true, SIZE, 0).verdict == "ok"
    assert deviation_figure(times, true).verdict == "ok"
    assert shape_figure(times, true, SIZE).verdict == "off"


def test_a_constant_delay_may_have_the_timers_coarseness():
    constant = Direction(5)
    assert deviation_figure(crossed(Direction(5, 0.25, "normal")), constant).verdict == "ok"
    assert deviation_figure(crossed(Direction(5, 0.5, "normal")), constant).verdict == "off"


def test_nothing_that_came_is_off():
    times = with_losses("xxxx")
    for figure in (mean_figure(times, FOUR_G, SIZE, 0), deviation_figure(times, FOUR_G)):
        assert figure.verdict == "off"
        assert figure.measured is None


def test_loss_is_counted_and_judged():
    times = crossed(FOUR_G, 20_000)
    figure = loss_figure(times, FOUR_G)
    assert figure.measured == sum(times.lost) / 20_000
    assert figure.verdict == "ok"
    assert loss_figure(crossed(replace(FOUR_G, loss=0.004), 20_000), FOUR_G).verdict == "off"
    assert loss_figure(crossed(replace(FOUR_G, loss=0), 20_000), FOUR_G).verdict == "off"


def test_bursts_are_losses_in_a_row():
    figure = burst_figure(with_losses("..xx..x...xxx."), BURSTY)
    assert figure.measured == 2.0
    assert figure.note == "3 bursts"
    assert burst_figure(with_losses("....."), BURSTY).verdict == "n/a"


def test_bursts_and_independent_losses_are_told_apart():
    assert burst_figure(crossed(BURSTY, 20_000), BURSTY).verdict == "ok"
    independent = replace(BURSTY, bursts=None, loss=BURSTY.mean_loss)
    assert burst_figure(crossed(independent, 20_000), BURSTY).verdict == "off"
    assert burst_figure(crossed(BURSTY, 20_000), independent).verdict == "off"


@pytest.mark.parametrize(
    "bursts", [Bursts(0.01, 0.25), Bursts(0.002, 0.1, bad=0.5), Bursts(0.05, 0.9, bad=0.8, good=0.01)]
)
def test_bursts_do_what_the_expectations_say(bursts):
    """Compare design effect and burst length with 3 million packets of the chain itself."""
    direction = Direction(bursts=bursts)
    lost = list(losses(direction, 3_000_000, random.Random(2)))
    blocks = [sum(lost[start : start + 1_000]) / 1_000 for start in range(0, len(lost), 1_000)]
    mean = sum(blocks) / len(blocks)
    variance = sum((block - mean) ** 2 for block in blocks) / len(blocks)
    assert mean == pytest.approx(bursts.mean_loss, rel=0.05)
    assert variance * 1_000 / (mean * (1 - mean)) == pytest.approx(expectations.design_effect(direction), rel=0.15)
    runs = sum(now and not before for before, now in zip([False, *lost], lost, strict=False))
    assert sum(lost) / runs == pytest.approx(expectations.mean_burst(direction), rel=0.03)


@pytest.mark.parametrize("direction", [FOUR_G, BURSTY])
def test_chance_alone_says_off_less_than_once_in_a_thousand_figures(direction):
    """Probe 500 correct links, 4 figures each: 0.2 false alarms expected at 99.99 %; more than 3 are a bug."""
    alarms = 0
    for seed in range(500):
        times = crossed(direction, packets=400, seed=seed)
        figures = [
            mean_figure(times, direction, SIZE, 0),
            deviation_figure(times, direction),
            loss_figure(times, direction),
            burst_figure(times, direction),
        ]
        alarms += sum(figure.verdict == "off" for figure in figures)
    assert alarms <= 3


def test_overtaking_matches_the_profile():
    figure = overtaken_figure(crossed(FOUR_G, 4_000, 0.002), FOUR_G, 1)
    assert 0.5 < figure.expected < 0.9
    assert figure.verdict == "ok"


def test_a_link_that_keeps_order_and_should_not_is_off_and_the_reverse():
    in_order = replace(FOUR_G, in_order=True)
    ordered = PacketTimes(tuple(n / 100 for n in range(100)), tuple(n / 100 + 1 for n in range(100)))
    assert overtaken_figure(ordered, in_order, 1).verdict == "ok"
    assert overtaken_figure(ordered, replace(FOUR_G, delay_ms=60, jitter_ms=50), 1).verdict == "off"
    assert overtaken_figure(crossed(FOUR_G, 1_000, 0.002), in_order, 1).verdict == "off"


@given(st.permutations(range(8)))
def test_a_packet_is_overtaken_if_a_later_one_arrives_before_it(arrivals):
    flags = expectations.overtaken(list(map(float, arrivals)))
    assert flags == [any(later < own for later in arrivals[idx + 1 :]) for idx, own in enumerate(arrivals)]


def test_packets_in_order_and_close_together_wait_for_each_other():
    in_order = replace(FOUR_G, in_order=True)
    close, far = ([n * spacing for n in range(2_000)] for spacing in (0.005, 0.2))
    assert expectations.waiting_share(close, in_order, 1) > 0.2
    assert expectations.waiting_share(far, in_order, 1) < 1e-4
    assert expectations.waiting_share(close, FOUR_G, 1) == 0


def load_times(rate_bps, seconds=5.0, offered_bps=25e6, held_back=False, stalls=()):
    """Return full packets at that rate; those that arrive during a stall (start, length) arrive at its end."""
    packets = [(n * 1514 * 8 / rate_bps, 1514.0) for n in range(int(seconds * rate_bps / 1514 / 8))]
    late = [
        (next((s + length for s, length in stalls if s <= when < s + length), when), size) for when, size in packets
    ]
    return LoadTimes(-0.03, seconds, tuple(late), offered_bps, held_back)


def test_throughput_is_held_against_the_rate():
    assert throughput_figure(load_times(20e6), FOUR_G).verdict == "ok"
    assert throughput_figure(load_times(18e6), FOUR_G).verdict == "off"
    assert throughput_figure(load_times(18e6, offered_bps=18e6), FOUR_G).verdict == "unclear"
    assert throughput_figure(load_times(18e6, offered_bps=18e6, held_back=True), FOUR_G).verdict == "n/a"
    assert throughput_figure(load_times(22e6, offered_bps=30e6, held_back=True), FOUR_G).verdict == "off"
    assert throughput_figure(load_times(20e6, seconds=0.5), FOUR_G).verdict == "off"


@pytest.mark.parametrize("starts", [(0.7, 4.3), (0.75, 2.0, 4.9), (1.0, 4.79)])
def test_stalls_at_the_edges_do_not_bend_the_throughput(starts):
    stalled = load_times(20e6, stalls=[(start, 0.25) for start in starts])
    assert passed_bps(stalled) == pytest.approx(20e6, rel=0.01)


def test_where_a_trace_decides_nothing_is_judged():
    traced = Direction(trace=DeliveryTrace("t", (1, 2, 3)))
    times = crossed(Direction(20))
    figures = [
        mean_figure(times, traced, SIZE, 0),
        deviation_figure(times, traced),
        shape_figure(times, traced, SIZE),
        loss_figure(times, traced),
        overtaken_figure(times, traced, 0),
        throughput_figure(load_times(20e6), traced),
    ]
    assert {figure.verdict for figure in figures} == {"n/a"}
