"""The queue limit: how many packets may wait behind it."""

import random

from driving import pushed_at

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
