"""The queue limit: how many packets may wait behind it."""

from driving import pushed_at

from outrider_netsim.impairments import Queue, Rate, Sink


def test_the_newest_is_dropped():
    link = Queue(Rate(Sink(), 8000), limit=3)
    assert pushed_at(link, [0.0] * 10) == [(1.0, 0), (2.0, 1), (3.0, 2)]
    assert link.dropped == 7
