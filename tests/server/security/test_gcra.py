"""The rate on a clock of the test's own: bursts, what a long time brings, jumps, costs above the burst, refunds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_proto.errors import Reason, Refusal
from outrider_server.security.gcra import Gcra
from outrider_server.security.principal import ANONYMOUS, Principal, Quota
from outrider_server.security.rate_limit import Quotas, QuotaUsage


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_goes_at_once_and_then_it_is_the_rate():
    rate = Gcra(rate=10, burst=50)
    for _ in range(6):
        assert rate.wait_s(0) == 0
        rate.charge(10, 0)
    assert rate.wait_s(0) == pytest.approx(1)
    assert rate.wait_s(0.9) == pytest.approx(0.1)
    assert rate.wait_s(1) == 0


def test_a_cost_above_the_burst_passes_and_the_next_one_waits_for_it():
    rate = Gcra(rate=10, burst=5)
    assert rate.wait_s(0) == 0
    rate.charge(1000, 0)
    assert rate.wait_s(0) == pytest.approx(99.5)
    assert rate.wait_s(99.6) == 0


@given(st.lists(st.tuples(st.floats(0.01, 300), st.floats(0, 3)), max_size=60))
def test_who_waits_as_told_never_gets_more_than_rate_burst_and_one_cost(steps):
    rate, now, spent, largest = Gcra(rate=10, burst=20), 0.0, 0.0, 0.0
    for cost, pause in steps:
        now += pause
        now += rate.wait_s(now) + 1e-9
        rate.charge(cost, now)
        spent, largest = spent + cost, max(largest, cost)
        assert spent <= 10 * now + 20 + largest + 1e-3


@given(st.lists(st.floats(-1e6, 0), min_size=1, max_size=10))
def test_a_clock_that_jumps_back_earns_nothing_and_takes_nothing(jumps):
    rate, now = Gcra(rate=10, burst=10), 0.0
    rate.charge(100, now)
    for jump in jumps:
        now += jump
        assert rate.wait_s(now) == pytest.approx(9, abs=1e-3)


def test_a_clock_that_jumps_ahead_brings_one_burst_and_no_more():
    rate = Gcra(rate=10, burst=10)
    rate.charge(10, 0)
    rate.charge(10, 1e9)
    rate.charge(10, 1e9)
    assert rate.wait_s(1e9) == pytest.approx(1)


def test_what_would_wait_too_long_is_refused_and_says_for_how_long():
    clock = Clock()
    usage = QuotaUsage(600, longest_wait_s=30, clock=clock)  # 10 a second, 100 at once
    usage.check()
    usage.settle(500)
    with pytest.raises(Refusal) as refused:
        usage.check()
    assert refused.value.reason is Reason.OVER_QUOTA
    assert refused.value.retry_after_s == pytest.approx(40)
    clock.now += 15
    usage.check()


def test_a_refund_is_as_if_it_had_never_been_paid():
    clock = Clock()
    usage = QuotaUsage(600, longest_wait_s=0, clock=clock)
    usage.settle(400)
    with pytest.raises(Refusal):
        usage.check()
    usage.settle(-300)
    usage.check()
    usage.settle(401)
    with pytest.raises(Refusal) as refused:
        usage.check()
    assert refused.value.retry_after_s == pytest.approx(40.1)


def test_sessions_of_one_payer_share_its_rate_and_others_have_their_own():
    allowances = Quotas(30, Clock())
    alice, bob = (Principal(name, quota=Quota(tokens_per_minute=60)) for name in ("alice", "bob"))
    assert allowances.of(alice) is allowances.of(alice)
    assert allowances.of(alice) is not allowances.of(bob)
    assert allowances.of(ANONYMOUS) is None
    richer = Principal("alice", quota=Quota(tokens_per_minute=120))
    assert allowances.of(richer).tokens_per_minute == 120
