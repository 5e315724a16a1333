"""Rate: one packet after the other, at the given rate."""

import pytest
from driving import numbered, pushed_at

from outrider_netsim.impairments import Rate, Sink


def test_packets_are_sent_one_after_the_other():
    # 1000 bytes at 8000 bit/s take a second; the third comes to an idle link
    assert pushed_at(Rate(Sink(), 8000), [0.0, 0.5, 10.0]) == [(1.0, 0), (2.0, 1), (11.0, 2)]


def test_unlimited_is_at_once():
    assert pushed_at(Rate(Sink(), 0), [0.0, 0.5, 0.5]) == [(0.0, 0), (0.5, 1), (0.5, 2)]


def test_a_saturated_link_carries_its_rate_of_any_sizes():
    link = Rate(Sink(), 1e6)
    sizes = [64 + 37 * n % 1450 for n in range(1000)]
    for n, size in enumerate(sizes):
        link.push(numbered(n, size), 0.0)
    *_, last = pushed_at(link, [])
    assert last[0] == pytest.approx(sum(sizes) * 8 / 1e6)


def test_a_late_question_changes_no_time():
    link = Rate(Sink(), 8000)
    link.push(numbered(0), 0.0)
    link.push(numbered(1), 5.0)  # nobody asked since 0; the first left at 1
    assert link.pop_ready(5.5) == [numbered(0)]
    assert link.next_event() == 6.0


def test_a_new_rate_holds_for_the_bits_that_wait():
    link = Rate(Sink(), 8000)
    link.push(numbered(0), 0.0)
    link.push(numbered(1), 0.0)
    link.set(16000, 0.5)  # half of the first is left: a quarter of a second
    assert pushed_at(link, []) == [(0.75, 0), (1.25, 1)]


def test_an_unlimited_rate_lets_all_go():
    link = Rate(Sink(), 8000)
    for n in range(3):
        link.push(numbered(n), 0.0)
    link.set(0, 0.5)
    assert pushed_at(link, []) == [(0.5, 0), (0.5, 1), (0.5, 2)]
