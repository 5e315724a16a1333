"""The rate of delivery traces: figures of known ones, and traces made like them."""

from dataclasses import replace

import numpy as np
import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.rates import rate_figures, step_of, trace_like
from outrider_netsim.profiles.synthetic import Cellular, deliveries_of
from outrider_netsim.profiles.traces import DeliveryTrace

CELLULAR = Cellular(rate_bps=10e6, handover_every_s=20, handover_s=0.3).deliveries(1200, 1)


def test_figures_of_a_rate_that_alternates():
    """2 and 6 Mbit/s, a second each: the correlation is 1 - |lag| at first, so 1/e lies at 0.63 s."""
    trace = deliveries_of(np.repeat([2e6, 6e6] * 60, 10), 0.1, 120)
    found = rate_figures(trace, step_of(trace))
    assert found.step_s == 0.1
    assert found.mean_bps == pytest.approx(4e6, rel=0.01)
    assert found.deviation_bps == pytest.approx(2e6, rel=0.05)
    assert found.quantiles_bps[0] == pytest.approx(2e6, rel=0.1)
    assert found.quantiles_bps[2] == pytest.approx(6e6, rel=0.1)
    assert found.stalls == 0
    assert found.coherence_s == pytest.approx(0.32, abs=0.05)


def test_stalls_are_counted():
    recorded = rate_figures(CELLULAR, 0.1)
    assert 40 <= recorded.stalls <= 200  # some 60 handovers of 300 ms, and fades
    assert recorded.longest_stall_s >= 0.3


def test_a_made_trace_has_the_recorded_rates_in_another_order():
    """The rates are the same but for what falls over the ends of steps; the coherence comes back within a third."""
    recorded = rate_figures(CELLULAR, step_of(CELLULAR))
    made = trace_like(CELLULAR, step_of(CELLULAR), 1)
    found = rate_figures(made, step_of(CELLULAR))
    assert made.at_ms != CELLULAR.at_ms
    assert made.period_ms == CELLULAR.period_ms
    assert found.mean_bps == pytest.approx(recorded.mean_bps, rel=0.01)
    assert found.deviation_bps == pytest.approx(recorded.deviation_bps, rel=0.02)
    assert found.quantiles_bps == pytest.approx(recorded.quantiles_bps, rel=0.1)
    assert found.coherence_s == pytest.approx(recorded.coherence_s, rel=0.35)


def test_the_seed_fixes_a_made_trace():
    assert trace_like(CELLULAR, 0.1, 1) == trace_like(CELLULAR, 0.1, 1)
    assert trace_like(CELLULAR, 0.1, 1) != trace_like(CELLULAR, 0.1, 2)


def test_slow_links_are_measured_in_longer_steps():
    slow = DeliveryTrace("slow", tuple(range(50, 500_001, 50)))  # 20 a second
    assert step_of(slow) == 1.0
    assert rate_figures(slow, 1.0).coherence_s == 0


@pytest.mark.parametrize("at_ms", [(5000,), tuple(range(1, 9000)), tuple(range(100, 100_001, 100))])
def test_short_traces_are_refused(at_ms):
    with pytest.raises(ProfileError, match=r"t: .* opportunities in .* s: need at least 2000 in 10 s"):
        step_of(replace(CELLULAR, name="t", at_ms=at_ms))
