"""Round trip and timeout, with Linux's floor."""

import pytest

from outrider_netsim.tcp.rtt import TcpRttEstimator


def test_the_timeout_of_a_steady_path_is_its_round_trip_and_200_ms():
    rtt = TcpRttEstimator()
    for n in range(100):
        rtt.sample(0.05, n, n + 1)
    assert rtt.srtt_s == pytest.approx(0.05)
    assert rtt.rto_s == pytest.approx(0.25)


def test_a_late_answer_raises_the_timeout_at_once_and_it_falls_by_a_quarter_a_round_trip():
    rtt = TcpRttEstimator()
    for n in range(100):
        rtt.sample(0.05, n, n + 1)
    rtt.sample(0.85, 100, 101)
    assert rtt.srtt_s == pytest.approx(0.15)
    assert rtt.rto_s == pytest.approx(0.15 + 0.8, abs=0.02)
    risen = rtt.rto_s - rtt.srtt_s
    rtt.sample(rtt.srtt_s, 102, 103)
    assert 0.7 * risen < rtt.rto_s - rtt.srtt_s < risen


def test_the_timeout_doubles_up_to_two_minutes():
    rtt = TcpRttEstimator()
    for seconds in (2, 4, 8, 16, 32, 64, 120, 120):
        rtt.back_off()
        assert rtt.rto_s == seconds
