"""How the window grows and shrinks."""

import math
from types import SimpleNamespace

import pytest

from outrider_netsim.tcp.congestion import Cubic, Reno

RTT_S = 0.1


def window(cwnd, ssthresh=math.inf):
    return SimpleNamespace(cwnd=cwnd, cwnd_count=0, ssthresh=ssthresh, una=0, nxt=0)


def rounds(control, state, number, start=0.0):
    """A full window is acknowledged every round trip, two packets at a time."""
    sizes = []
    for n in range(number):
        sent = state.cwnd
        for acked in range(0, sent, 2):
            control.grow(state, min(2, sent - acked), start + (n + acked / sent) * RTT_S)
        sizes.append(state.cwnd)
    return sizes


def test_reno_grows_by_one_a_round_trip_and_halves():
    state = window(20, 20)
    assert rounds(Reno(), state, 5) == pytest.approx([21, 22, 23, 24, 25], abs=1)
    assert Reno().ssthresh(window(20)) == 10
    assert Reno().ssthresh(window(3)) == 2


def test_cubic_follows_its_formula():
    control, state = Cubic(), window(1000)
    state.cwnd = state.ssthresh = control.ssthresh(state)
    k_s = (300 / 0.4) ** (1 / 3)  # RFC 9438, section 4.2
    for n in range(int(2 * k_s / RTT_S)):
        rounds(control, state, 1, n * RTT_S)
        expected = 1000 + 0.4 * ((n + 1) * RTT_S - k_s) ** 3
        assert state.cwnd == pytest.approx(expected, rel=0.03)


def test_cubic_is_no_slower_than_reno_would_be_with_its_factor():
    control, state = Cubic(), window(10)
    state.cwnd = state.ssthresh = control.ssthresh(state)
    sizes = rounds(control, state, 40)
    assert sizes[-1] >= 7 + 40 * 0.5


def test_hystart_ends_slow_start_when_the_round_trip_grows():
    control, state = Cubic(), window(40)
    for n in range(200):
        state.una, state.nxt = n, n + 40
        control.measured(state, RTT_S + n * 0.001, n * 0.01)
        if state.ssthresh < math.inf:
            break
    assert 4 <= n <= 60  # an eighth of 100 ms, seen in eight samples of one round trip
    assert state.ssthresh == 40
