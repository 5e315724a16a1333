"""The queue limit: how many packets may wait behind it."""

import random

from driving import events_until, numbered, pushed_at

from outrider_netsim.impairments import Delay, Queue, Rate, Sink
from outrider_netsim.profiles.profile import Direction


def test_the_newest_is_dropped():
    link = Queue(Rate(Sink(), 8000), limit=3)
    assert pushed_at(link, [0.0] * 10) == [(1.0, 0), (2.0, 1), (3.0, 2)]
    assert link.dropped == 7


def test_packets_that_are_only_delayed_count_too():
    link = Queue(Delay(Sink(), Direction(delay_ms=1000), random.Random(1)), limit=2)
    assert [n for _, n in pushed_at(link, [0.0, 0.25, 0.5, 1.0, 1.125])] == [0, 1, 3]
    assert link.dropped == 2


def test_room_is_there_the_moment_a_packet_leaves_whether_or_not_it_was_taken():
    link = Queue(Rate(Sink(), 8000), limit=1)
    for n, now in enumerate([0.0, 0.5, 1.0]):
        link.push(numbered(n), now)
    assert link.dropped == 1
    assert link.next_event() <= 1.0  # the first has come out; time to ask
    assert link.pop_ready(1.0) == [numbered(0)]
    assert events_until(link) == [(2.0, 2)]
