"""The rate of delivery traces: figures of known ones, and traces made like them."""

import numpy as np
import pytest

from outrider_netsim.fitting.rates import rate_figures
from outrider_netsim.profiles.synthetic import Cellular, deliveries_of

CELLULAR = Cellular(rate_bps=10e6, handover_every_s=20, handover_s=0.3).deliveries(1200, 1)


def test_figures_of_a_rate_that_alternates():
    """2 and 6 Mbit/s, a second each: the correlation is 1 - |lag| at first, so 1/e lies at 0.63 s."""
    trace = deliveries_of(np.repeat([2e6, 6e6] * 60, 10), 0.1, 120)
    found = rate_figures(trace)
    assert found.step_s == 0.1
    assert found.mean_bps == pytest.approx(4e6, rel=0.01)
    assert found.deviation_bps == pytest.approx(2e6, rel=0.05)
    assert found.quantiles_bps[0] == pytest.approx(2e6, rel=0.1)
    assert found.quantiles_bps[2] == pytest.approx(6e6, rel=0.1)
    assert found.stalls == 0
    assert found.coherence_s == pytest.approx(0.32, abs=0.05)


def test_stalls_are_counted():
    recorded = rate_figures(CELLULAR)
    assert 40 <= recorded.stalls <= 200  # some 60 handovers of 300 ms, and fades
    assert recorded.longest_stall_s >= 0.3
