"""Planned outages: their notation and their timing."""

import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.profiles.outages import Outage, in_order, occurrences, outage_text, parse_outage, run_outages
from outrider_netsim.profiles.profile import Direction, Profile, ProfileError


@pytest.mark.parametrize(
    ("text", "outage"),
    [
        ("3s@10s", Outage(3, 10)),
        ("500ms@2m", Outage(0.5, 120)),
        ("1min@1.5min", Outage(60, 90)),
        (" 1.5s@0s ", Outage(1.5, 0)),
        ("1s@5s/30s", Outage(1, 5, 30)),
        ("50ms@7s/20s+hold", Outage(0.05, 7, 20, hold=True)),
        ("1s@2s+hold", Outage(1, 2, hold=True)),
        ("up:1s@2s/5s", Outage(1, 2, 5, way="up")),
        ("down:50ms@2s+hold", Outage(0.05, 2, hold=True, way="down")),
        ("3s@first", Outage(3, 0, after_answer=True)),
        ("up:3s@first+2s/10s", Outage(3, 2, 10, way="up", after_answer=True)),
    ],
)
def test_outages_are_written_as_duration_at_start(text, outage):
    assert parse_outage(text) == outage


@pytest.mark.parametrize(
    "text",
    [
        *("", "3@10", "3s", "s@10s", "-3s@1s", "3h@1s", "0s@1s", "1s@2s/", "2s@0s/2s", "1s@1s+", "+hold", "1s@1s hold"),
        *("left:1s@2s", "up:", ":1s@2s", "3s@first2s", "3s@first+", "3s@last+2s", "3s@2s+first", "3s@first+1s+hold"),
    ],
)
def test_what_is_no_outage_is_refused(text):
    with pytest.raises(ProfileError, match=f"^outage {re.escape(repr(text))}: "):
        parse_outage(text)


def test_outages_are_sorted_and_overlapping_ones_are_one():
    assert in_order([Outage(1, 5), Outage(1, 2)]) == [Outage(1, 2), Outage(1, 5)]
    assert list(occurrences([Outage(1, 5), Outage(4, 2), Outage(1, 6), Outage(1, 9)])) == [(2, 7), (9, 10)]
    with pytest.raises(ProfileError, match="only --outage of run and proxy counts from an answer"):
        Profile.symmetric("x", Direction(), outages=(Outage(1, 2, after_answer=True),))


@given(
    st.floats(1e-6, 1e6),
    st.floats(0, 1e6),
    st.none() | st.floats(1e-6, 1e6),
    st.booleans(),
    st.sampled_from([None, "up", "down"]),
    st.booleans(),
)
def test_outages_are_read_as_they_are_written(duration, start, gap, hold, way, after_answer):
    every_s = None if gap is None else duration + gap
    outage = Outage(duration, start, every_s, hold, way, after_answer and not hold)
    assert parse_outage(outage_text(outage)) == outage


@pytest.mark.parametrize(
    "numbers", [(0, 1), (float("inf"), 1), (1, -1), (1, float("nan")), (1, 0, 1), (1, 0, float("inf"))]
)
def test_impossible_outages_are_refused(numbers):
    with pytest.raises(ProfileError, match=r"needs?"):
        Outage(*numbers)


def test_recurring_outages_come_in_order_and_apart():
    assert list(occurrences([])) == []
    assert list(occurrences([Outage(1, 5), Outage(2, 0)])) == [(0, 2), (5, 6)]
    several = [Outage(1, 0, every_s=10), Outage(2, 4.5, every_s=5), Outage(3, 15)]
    assert list(islice(occurrences(several), 5)) == [(0, 1), (4.5, 6.5), (9.5, 11.5), (14.5, 18), (19.5, 21.5)]


def test_recurring_outages_that_leave_no_link_are_refused():
    covering = [Outage(6.0, 0.0, 10.0), Outage(4.0, 6.0, 10.0)]
    with pytest.raises(ProfileError, match="leave no time with a link"):
        in_order(covering)


async def test_cutting_a_link_cannot_hold_packets():
    with pytest.raises(ProfileError, match=r"outage 1s@2s\+hold: a cut drops packets; give it in the link's profile"):
        await run_outages(None, [Outage(1, 2, hold=True)])
