"""Outages: which packets are dropped."""

from driving import numbered, pushed_at

from outrider_netsim.impairments import Outages, Sink
from outrider_netsim.profiles.outages import Outage


def test_planned_outages_start_with_their_start_and_end_before_their_end():
    link = Outages(Sink(), [Outage(duration_s=1, start_s=2)])
    assert [when for when, _ in pushed_at(link, [0, 1.999, 2, 2.999, 3, 9])] == [0, 1.999, 3, 9]
    assert link.dropped == 2


def test_recurring_ones_come_again_also_after_a_long_silence():
    link = Outages(Sink(), [Outage(1, 2, every_s=10), Outage(1, 5)], started_at=100)
    times = [102.5, 105.5, 112.5, 115.5, 100_002.5 + 100, 100_203.5]
    assert [when for when, _ in pushed_at(link, times)] == [115.5, 100_203.5]


def test_cutting_by_hand_is_apart_from_the_plan():
    link = Outages(Sink(), [Outage(duration_s=1, start_s=2)])
    link.is_cut = True
    link.push(numbered(0), 1.0)
    link.is_cut = False
    link.push(numbered(1), 2.5)
    link.push(numbered(2), 3.5)
    assert link.pop_ready(4) == [numbered(2)]
