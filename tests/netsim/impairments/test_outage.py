"""Outages: which packets are dropped, and which wait."""

import pytest
from driving import pushed_at
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.impairments.outage import Holds, Outages
from outrider_netsim.impairments.rate import Rate
from outrider_netsim.impairments.sink import Sink
from outrider_netsim.impairments.trace import DeliveryOpportunities
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.traces import DeliveryTrace


def test_planned_outages_start_with_their_start_and_end_before_their_end():
    link = Outages(Sink(), [Outage(duration_s=1, start_s=2)])
    assert [when for when, _ in pushed_at(link, [0, 1.999, 2, 2.999, 3, 9])] == [0, 1.999, 3, 9]
    assert link.dropped == 2


def test_recurring_ones_come_again_also_after_a_long_silence():
    link = Outages(Sink(), [Outage(1, 2, every_s=10), Outage(1, 5)], started_at=100)
    times = [102.5, 105.5, 112.5, 115.5, 100_002.5 + 100, 100_203.5]
    assert [when for when, _ in pushed_at(link, times)] == [115.5, 100_203.5]


HANDOVERS = [Outage(1, 2, hold=True), Outage(1, 5, every_s=10, hold=True)]


def test_packets_wait_for_the_end_of_a_handover():
    link = Rate(Sink(), 0, Holds(HANDOVERS))
    times = [0, 1.999, 2, 2.5, 3, 5.5, 15.0, 15.999, 16, 1_000_005.25]
    assert [when for when, _ in pushed_at(link, times)] == [0, 1.999, 3, 3, 3, 6, 16, 16, 16, 1_000_006]


def test_a_handover_interrupts_what_is_being_sent_and_costs_its_time():
    """1000 bytes at 8 kbit/s take a second: the third packet is stopped after half of its bits."""
    link = Rate(Sink(), 8000, Holds(HANDOVERS))
    assert [when for when, _ in pushed_at(link, [0.0, 0.5, 1.0, 1.0, 9.0])] == [1, 2, 4, 5, 10]
    assert [when for when, _ in pushed_at(Rate(Sink(), 8000, Holds(HANDOVERS)), [1.5, 4.5])] == [3.5, 6.5]


def test_opportunities_in_a_handover_are_lost():
    link = DeliveryOpportunities(Sink(), holds=Holds(HANDOVERS))
    link.set(DeliveryTrace("t", (700, 1000)), 0.0)
    assert [when for when, _ in pushed_at(link, [1.75, 1.75, 2.25], 1500)] == [2.0 + 1, 3.7, 4.0]


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 2)), min_size=1, max_size=12),
    st.sampled_from([(Outage(0.3, 0.2, 0.7, hold=True),), tuple(HANDOVERS), ()]),
)
def test_what_ends_a_send_is_its_time_outside_of_the_handovers(steps, planned):
    """`sending_s` is the inverse of `end`, except that a send of length 0 may wait."""
    ends, between = Holds(planned, started_at=1.0), Holds(planned, started_at=1.0)
    now = 0.0
    for pause, seconds in steps:
        end = ends.end(now, seconds)
        assert end >= now + seconds
        assert between.sending_s(now, end) == pytest.approx(seconds, abs=1e-9)
        now = end + pause
