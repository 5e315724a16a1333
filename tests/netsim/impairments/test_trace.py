"""Traces: opportunities and their bytes, rows and their times, and repetition."""

from driving import numbered, pushed_at
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.impairments.rate import Rate
from outrider_netsim.impairments.sink import Sink
from outrider_netsim.impairments.trace import ConditionChanges, DeliveryOpportunities, RepeatingTimes
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace

FULL = 1514  # a packet of 1500 bytes on Ethernet fills one opportunity


def link(*at_ms, started_at=0.0):
    link = DeliveryOpportunities(Sink(), started_at)
    link.set(DeliveryTrace("test", at_ms), started_at)
    return link


def test_a_full_packet_takes_one_opportunity_and_waits_for_it():
    assert pushed_at(link(125, 500, 1000), [0.0, 0.0, 0.0], FULL) == [(0.125, 0), (0.5, 1), (1.0, 2)]


def test_small_packets_share_one_and_room_left_is_lost():
    # 500 bytes less 14 of Ethernet plus 4 count: three take 1470 of 1504, and the fourth 34 more and 456 of the next
    assert pushed_at(link(125, 500, 1000), [0.0] * 4, 500) == [(0.125, 0), (0.125, 1), (0.125, 2), (0.5, 3)]
    assert pushed_at(link(125, 500, 1000), [0.0, 0.25], 500) == [(0.125, 0), (0.5, 1)]


def test_a_big_packet_takes_several():
    assert pushed_at(link(125, 500, 1000), [0.0], 4000) == [(1.0, 0)]


def test_what_comes_at_the_moment_of_an_opportunity_waits_for_the_next():
    assert pushed_at(link(125, 500), [0.125], FULL) == [(0.5, 0)]


def test_the_trace_starts_again_after_its_last_line():
    assert pushed_at(link(125, 500, started_at=10), [10.5, 10.5, 13.25], FULL) == [(10.625, 0), (11.0, 1), (13.5, 2)]


def test_a_new_trace_holds_for_what_waits():
    changed = link(1000)
    changed.push(numbered(0, FULL), 0.0)
    changed.set(DeliveryTrace("other", (125,)), 0.25)
    assert pushed_at(changed, []) == [(0.375, 0)]


@given(
    offsets=st.lists(st.integers(0, 5000), min_size=1, max_size=10).map(sorted),
    started_at=st.floats(0, 1e6),
    now=st.floats(0, 1e7),
)
def test_the_first_moment_after_now_is_just_that(offsets, started_at, now):
    table = RepeatingTimes([ms / 1000 for ms in offsets], 5.0, started_at)
    n = table.first_after(now)
    assert table.time(n) > now
    assert n == 0 or table.time(n - 1) <= now


def test_rows_come_at_their_times_and_again():
    rate = Rate(Sink(), 0)
    applied = []

    def apply(row, when):
        applied.append((row, when))
        rate.set([8000, 4000][row], when)

    link = ConditionChanges(rate)
    link.set(ConditionTrace("two", (0.0, 1.0), 2.0), apply, 0.0)
    # the first sends a half in 0.5 s at 8000 bit/s, the other in 1 s at 4000; the second takes 1 s at 8000 again
    assert pushed_at(link, [0.5, 0.5]) == [(2.0, 0), (3.0, 1)]
    assert applied == [(0, 0.0), (1, 1.0), (0, 2.0), (1, 3.0)]


def test_rows_without_packets_under_way_are_skipped():
    applied = []
    link = ConditionChanges(Sink())
    link.set(ConditionTrace("three", (0.0, 1.0, 2.0), 3.0), lambda row, when: applied.append((row, when)), 0.0)
    assert pushed_at(link, [1e6 + 0.5]) == [(1e6 + 0.5, 0)]
    assert len(applied) == 2  # the first, and the one that holds now
    assert applied[1][0] == int((1e6 + 0.5) % 3)
