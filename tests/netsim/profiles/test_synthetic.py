"""Synthetic cellular traces: fixed by the seed, with the requested mean rate, and stopped by handovers."""

import math
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_netsim.cli.trace import described
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.synthetic import LEAST_BPS, STEP_S, Cellular
from outrider_netsim.profiles.trace_files import parse_trace, trace_text
from outrider_netsim.profiles.traces import OPPORTUNITY_BYTES, DeliveryTrace

HOUR_S = 3600


def test_same_seed_same_trace_other_seed_other_trace():
    cellular = Cellular()
    assert cellular.deliveries(20, 1) == cellular.deliveries(20, 1)
    assert cellular.conditions(20, 1) == cellular.conditions(20, 1)
    assert cellular.deliveries(20, 1) != cellular.deliveries(20, 2)


def test_the_mean_rate_is_the_requested_one():
    """Levels are held for seconds, so an hour has some thousand of them: its mean has a deviation of about 3 %."""
    rates = Cellular(rate_bps=20e6, handover_every_s=0).conditions(HOUR_S, 1).rate_bps
    assert fmean(rates) == pytest.approx(20e6, rel=0.1)
    assert min(rates) < 1e6
    assert max(rates) > 40e6


@settings(max_examples=20)
@given(st.integers(0, 1000), st.floats(0.5e6, 100e6), st.floats(1, 20))
def test_both_forms_carry_the_same_bytes_and_can_be_read(seed, rate_bps, seconds):
    cellular = Cellular(rate_bps=rate_bps)
    deliveries, conditions = cellular.deliveries(seconds, seed), cellular.conditions(seconds, seed)
    sent = sum(rate * STEP_S / 8 for rate in conditions.rate_bps)
    slack = 2 * OPPORTUNITY_BYTES + seconds * LEAST_BPS / 8 + 2 * STEP_S * max(conditions.rate_bps) / 8
    assert len(deliveries.at_ms) * OPPORTUNITY_BYTES == pytest.approx(sent, abs=slack)
    assert deliveries.period_ms == round(1000 * seconds)
    assert parse_trace(trace_text(deliveries).splitlines(), "synthetic").up == deliveries
    read = parse_trace(trace_text(conditions).splitlines(), "synthetic").up
    assert (read.times_s, read.rate_bps, read.delay_ms, read.loss) == (
        conditions.times_s,
        conditions.rate_bps,
        conditions.delay_ms,
        conditions.loss,
    )
    assert read.period_s == pytest.approx(conditions.period_s)


def test_nothing_passes_in_a_handover_and_as_many_come_as_asked():
    trace = Cellular(rate_bps=20e6, handover_every_s=4, handover_s=0.5).deliveries(HOUR_S / 4, 3)
    gaps = [after - before for before, after in pairwise(trace.at_ms) if after - before >= 480]
    assert max(gaps) < 700
    expected = HOUR_S / 4 / 4.5
    assert len(gaps) == pytest.approx(expected, abs=4.9 * math.sqrt(expected))  # one false alarm in a million


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate_bps": 0}, "rate_bps=0: need 10000 to 1e[+]10"),
        ({"delay_ms": -1}, "delay_ms=-1"),
        ({"handover_s": 11}, "handover_s=11: need 0 to 10"),
        ({"handover_every_s": 0.05}, "handover_every_s=0.05: need 0.1 to"),
        ({"handover_every_s": math.nan}, "handover_every_s=nan"),
    ],
)
def test_absurd_links_are_refused_by_name(arguments, message):
    with pytest.raises(ProfileError, match=message):
        Cellular(**arguments)


def test_a_summary_of_deliveries_goes_by_seconds():
    length, rate = described("t", DeliveryTrace("t", (0, 10, 20, 1500, 2500)))
    assert length == "t: 5 opportunities in 2.5 s, longest gap 1480 ms"
    assert rate.split()[2::2] == ["least", "mean", "most"]
    assert rate.split()[3::2] == ["0.012", "0.0241", "0.0361"]
    _, rate = described("t", DeliveryTrace("t", (5, 100)))
    assert rate.split()[3::2] == ["0.241"] * 3
