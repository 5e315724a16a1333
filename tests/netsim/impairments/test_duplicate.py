"""Duplication: how many packets come twice, and that the copies go their own ways."""

import random

from driving import pushed_at
from scipy import stats

from outrider_netsim.impairments.delay import Delay
from outrider_netsim.impairments.duplicate import Duplicate
from outrider_netsim.impairments.sink import Sink
from outrider_netsim.profiles.profile import Direction


def test_the_share_of_packets_comes_twice_one_right_after_the_other():
    link = Duplicate(Sink(), 0.25, random.Random(1))
    out = [n for _, n in pushed_at(link, [float(n) for n in range(4000)])]
    assert out == sorted(out)
    assert len(out) == 4000 + link.duplicated
    assert stats.binomtest(link.duplicated, 4000, 0.25).pvalue > 1e-3


def test_copies_have_delays_of_their_own():
    link = Duplicate(Delay(Sink(), Direction(50, 10, "normal"), random.Random(2)), 1.0, random.Random(1))
    times = {}
    for when, n in pushed_at(link, [float(n) for n in range(100)]):
        times.setdefault(n, []).append(when)
    assert all(len(arrivals) == 2 and arrivals[0] < arrivals[1] for arrivals in times.values())
