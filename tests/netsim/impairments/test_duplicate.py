"""Duplication: how many packets come twice, and that the copies go their own ways."""

import random

from driving import events_until, numbered, pushed_at
from scipy import stats

from outrider_netsim.impairments import Delay, Duplicate, Packet, Sink
from outrider_netsim.impairments.path import Path
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


def test_an_observer_sees_a_copy_as_a_packet_of_its_own_and_counters_add_up():
    seen = []

    class Observer:
        def entered(self, packet, now):
            seen.append(("entered", packet.data, id(packet)))

        def copied(self, packet, now):
            seen.append(("copied", packet.data, id(packet)))

        def left(self, packet, now):
            seen.append(("left", packet.data, id(packet)))

        def dropped(self, packet, now, reason):
            seen.append((reason, packet.data, id(packet)))

    path = Path(Direction(duplicate=1.0, rate_bps=8000, queue_packets=1), 1)
    path.observe(Observer())
    packet = numbered(7)
    path.push(packet, 0.0)
    events_until(path)
    assert [(what, data) for what, data, _ in seen] == [
        *(("entered", b"7"), ("copied", b"7"), ("queue", b"7"), ("left", b"7"))
    ]
    assert seen[0][2] == seen[3][2] == id(packet) != seen[1][2] == seen[2][2]
    stats_ = path.stats
    assert (stats_.packets_in, stats_.duplicated, stats_.packets_out, stats_.dropped_by_queue) == (1, 1, 1, 1)


def test_a_path_may_begin_and_end_to_duplicate():
    path = Path(Direction(), 1)
    for n, share in enumerate((0.0, 1.0, 0.0)):
        path.set(Direction(duplicate=share), float(n))
        path.push(Packet(b"%d" % n, 100), float(n))
    assert [p.data for p in path.pop_ready(3.0)] == [b"0", b"1", b"1", b"2"]
