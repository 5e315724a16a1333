"""Slots: packets leave at multiples of a time, and no others."""

import pytest
from driving import numbered, pushed_at
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.impairments.path import Path
from outrider_netsim.impairments.rate import Rate
from outrider_netsim.impairments.sink import Sink
from outrider_netsim.impairments.slots import Slots
from outrider_netsim.profiles.profile import Direction


def test_all_that_are_ready_leave_together():
    link = Slots(Sink(), 0.5, started_at=0.25)
    out = pushed_at(link, [0.25, 0.3, 0.7, 0.75, 0.76, 2.0])
    assert out == [(0.25, 0), (0.75, 1), (0.75, 2), (0.75, 3), (1.25, 4), (2.25, 5)]


def test_slots_follow_the_rate():
    link = Rate(Slots(Sink(), 1.0, 0.0), 16_000)
    assert pushed_at(link, [0.0, 0.0, 0.0]) == [(1.0, 0), (1.0, 1), (2.0, 2)]


def test_a_shorter_slot_lets_none_overtake():
    path = Path(Direction(slot_ms=1000), 1)
    path.push(packet := numbered(0), 0.1)
    path.set(Direction(slot_ms=10), 0.2)
    path.push(after := numbered(1), 0.3)
    assert path.pop_ready(0.9) == []
    assert path.pop_ready(1.0) == [packet, after]


@given(st.integers(0, 10**6), st.sampled_from([0.5, 1.0, 3.0, 10.0]), st.floats(0, 1e6))
def test_a_packet_at_the_time_of_a_slot_leaves_in_it(n, slot_ms, started_at):
    link = Slots(Sink(), slot_ms / 1000, started_at)
    now = started_at + n * slot_ms / 1000
    ((when, _),) = pushed_at(link, [now])
    assert when == pytest.approx(now, abs=1e-8)
