"""Timers as late as Linux's."""

import pytest

from outrider_netsim.tcp.timer import Timer, expiry
from outrider_netsim.virtual.clock import VirtualClock


@pytest.mark.parametrize(
    ("now", "delay_s", "due"),
    [
        (0.0, 0.04, 0.044),  # ten ticks of 4 ms, and the one under way
        (0.0, 0.25, 0.256),  # 62.5 ticks round to 63, from where on the wheel counts eight at a time
        (0.0, 0.3, 0.32),
        (0.1, 1.0, 1.12),
        (0.0, 3.0, 3.072),  # in steps of 64
    ],
)
def test_long_timers_are_coarser(now, delay_s, due):
    assert expiry(now, delay_s) == pytest.approx(due)


def test_a_timer_fires_for_the_last_time_it_was_set_to():
    clock, fired = VirtualClock(), []
    timer = Timer(clock, lambda: fired.append(clock.now), exact=True)
    timer.set(1.0)
    clock.run_until(0.5)
    timer.set(2.0)
    clock.run_until(2.4)
    assert not fired
    clock.run_until(3.0)
    assert fired == [2.5]
    timer.set(5.0)
    timer.set(1.0)
    clock.run_until(4.0)
    assert fired == [2.5, 4.0]
    timer.set(1.0)
    timer.cancel()
    clock.run_until(20)
    assert len(fired) == 2
