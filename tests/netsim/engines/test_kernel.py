"""The kernel engine: refusals and counters here, real netem in test_kernel_vm.py."""

import errno

import pytest

from outrider_netsim.core.addresses import Address
from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines import shaped_pair
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.kernel import KernelLane, KernelLink
from outrider_netsim.engines.rtnetlink import NetlinkError
from outrider_netsim.engines.shaped_pair import QdiscCounters
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.traces import DeliveryTrace

UPSTREAM = Address("127.0.0.1", 9)


def test_a_kernel_without_the_module_is_told_what_to_do():
    remedy = shaped_pair._remedy("netem", NetlinkError(errno.ENOENT, "no such kind"))
    for word in ("modprobe sch_netem", "linux-modules-extra", "--engine tun"):
        assert word in remedy


async def test_a_mahimahi_trace_is_refused_before_anything_is_made():
    direction = Direction(trace=DeliveryTrace("subway", (1, 2, 3)))
    link = KernelLink(LinkPlan(Profile.symmetric("subway", direction), UPSTREAM))
    with pytest.raises(EngineError, match=r"up\.trace 'subway': .*use --engine tun"):
        await link.start()


def test_every_change_has_a_seed_of_its_own():
    up, again, down = KernelLane("A", 7), KernelLane("A", 7), KernelLane("B", 7)
    seeds = [up.shaping(False).netem.seed for _ in range(3)]
    assert len(set(seeds)) == 3
    assert seeds == [again.shaping(False).netem.seed for _ in range(3)]
    assert down.shaping(False).netem.seed not in seeds


def test_packets_that_a_buffer_refuses_are_the_queues():
    lane = KernelLane("A", 0)
    assert lane.update_stats(QdiscCounters(dropped=9, dropped_by_buffer=5), was_down=False).lost == 4
    stats = lane.update_stats(QdiscCounters(dropped=12, dropped_by_buffer=1), was_down=False)  # a new buffer
    assert (stats.lost, stats.dropped_by_queue, stats.packets_in) == (6, 6, 12)
