"""Rate: one packet after the other, at the given rate; and how many may wait before it."""

from driving import numbered, pushed_at

from outrider_netsim.impairments.queue import Queue
from outrider_netsim.impairments.rate import Rate
from outrider_netsim.impairments.sink import Sink


def test_packets_are_sent_one_after_the_other():
    # 1000 bytes at 8000 bit/s take a second; the third comes to an idle link
    assert pushed_at(Rate(Sink(), 8000), [0.0, 0.5, 10.0]) == [(1.0, 0), (2.0, 1), (11.0, 2)]


def test_unlimited_is_at_once():
    assert pushed_at(Rate(Sink(), 0), [0.0, 0.5, 0.5]) == [(0.0, 0), (0.5, 1), (0.5, 2)]


def test_a_new_rate_holds_for_the_bits_that_wait():
    link = Rate(Sink(), 8000)
    link.push(numbered(0), 0.0)
    link.push(numbered(1), 0.0)
    link.set(16000, 0.5)  # half of the first is left: a quarter of a second
    assert pushed_at(link, []) == [(0.75, 0), (1.25, 1)]


def test_the_newest_is_dropped():
    link = Queue(Rate(Sink(), 8000), limit=3)
    assert pushed_at(link, [0.0] * 10) == [(1.0, 0), (2.0, 1), (3.0, 2)]
    assert link.dropped == 7
