"""The kernel engine: refusals and counters here, real netem in test_kernel_vm.py."""

import platform
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from outrider_netsim.core.addresses import Address
from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.kernel import KernelLane, KernelLink
from outrider_netsim.engines.kernel_support import kernel_support
from outrider_netsim.engines.shaped_pair import QdiscCounters
from outrider_netsim.impairments.path import direction_in_row
from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace

UPSTREAM = Address("127.0.0.1", 9)
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="netem is Linux's")


@pytest.fixture
def modules(tmp_path):
    folder = tmp_path / "lib/modules" / platform.release()
    folder.mkdir(parents=True)
    return folder


@ON_LINUX
def test_a_kernel_without_the_module_is_told_what_to_do(tmp_path, modules):
    reason = kernel_support(tmp_path)
    assert reason is not None
    for word in ("modprobe sch_netem", "linux-modules-extra", "--engine tun"):
        assert word in reason


@ON_LINUX
@pytest.mark.parametrize("file", ["sch_netem.ko", "sch_netem.ko.xz", "sch_netem.ko.zst"])
def test_a_kernel_with_the_module_may(tmp_path, modules, file):
    (modules / "kernel/net/sched").mkdir(parents=True)
    (modules / "kernel/net/sched" / file).touch()
    assert kernel_support(tmp_path) is None


@ON_LINUX
def test_a_kernel_with_netem_built_in_or_loaded_may_and_without_a_folder_of_modules_only_trying_tells(tmp_path):
    assert kernel_support(tmp_path) is None
    modules = tmp_path / "lib/modules" / platform.release()
    modules.mkdir(parents=True)
    assert kernel_support(tmp_path) is not None
    (modules / "modules.builtin").write_text("kernel/net/sched/sch_tbf.ko\nkernel/net/sched/sch_netem.ko\n")
    assert kernel_support(tmp_path) is None
    (modules / "modules.builtin").unlink()
    (tmp_path / "sys/module/sch_netem").mkdir(parents=True)
    assert kernel_support(tmp_path) is None


@ON_LINUX
async def test_a_mahimahi_trace_is_refused_before_anything_is_made():
    direction = Direction(trace=DeliveryTrace("subway", (1, 2, 3)))
    link = KernelLink(LinkPlan(Profile.symmetric("subway", direction), UPSTREAM))
    if kernel_support() is not None:
        pytest.skip("this kernel refuses earlier: it has no netem")
    with pytest.raises(EngineError, match=r"up\.trace 'subway': .*use --engine tun"):
        await link.start()


@ON_LINUX
async def test_where_it_cannot_start_it_says_why_and_leaves_nothing():
    link = KernelLink(LinkPlan(profile_named("paper-4g"), UPSTREAM))
    try:
        await link.start()
    except EngineError as error:
        assert "use --engine" in str(error)  # noqa: PT017 - it may also start
    with pytest.raises(RuntimeError, match="not started"):
        _ = KernelLink(LinkPlan(profile_named("paper-4g"), UPSTREAM)).stats
    await link.aclose()
    await link.aclose()


def test_every_change_has_a_seed_of_its_own():
    up, again, down = KernelLane("A", 7), KernelLane("A", 7), KernelLane("B", 7)
    seeds = [up.shaping(False).netem.seed for _ in range(3)]
    assert len(set(seeds)) == 3
    assert seeds == [again.shaping(False).netem.seed for _ in range(3)]
    assert down.shaping(False).netem.seed not in seeds


def test_a_coherent_delay_moves_in_small_steps_and_others_stay_with_netem():
    lane = KernelLane("A", 3)
    lane.change(Direction(40, 10, "normal", in_order=True, coherence_ms=60_000))
    drawn = []
    for _ in range(50):
        lane.draw()
        drawn.append(lane.shaping(False).netem.delay.latency_ns / 1e6)
    assert 10 < drawn[0] < 70
    assert max(abs(b - a) for a, b in pairwise(drawn)) < 5  # no time passes between draws, at most seconds
    lane.change(Direction(40, 10, "normal"))
    assert lane.delay_s is None
    assert lane.shaping(False).netem.delay.entries


def test_packets_dropped_in_a_cut_are_the_outages():
    lane = KernelLane("A", 0)
    assert lane.update_stats(QdiscCounters(packets_out=10, bytes_out=900, dropped=2), was_down=False).lost == 2
    assert lane.update_stats(QdiscCounters(packets_out=10, dropped=5), was_down=True).dropped_by_outage == 3
    stats = lane.update_stats(
        QdiscCounters(packets_out=20, bytes_out=1800, waiting_packets=3, waiting_bytes=300, dropped=6), False
    )
    assert (stats.packets_in, stats.packets_out) == (29, 20)
    assert (stats.lost, stats.dropped_by_outage) == (3, 3)
    assert (stats.bytes_in, stats.bytes_out) == (2100, 1800)


def test_packets_that_a_buffer_refuses_are_the_queues():
    lane = KernelLane("A", 0)
    assert lane.update_stats(QdiscCounters(dropped=9, dropped_by_buffer=5), was_down=False).lost == 4
    stats = lane.update_stats(QdiscCounters(dropped=12, dropped_by_buffer=1), was_down=False)  # a new buffer
    assert (stats.lost, stats.dropped_by_queue, stats.packets_in) == (6, 6, 12)


def test_a_row_of_a_trace_becomes_a_direction():
    trace = ConditionTrace("walk", (0.0, 1.0), 2.0, delay_ms=(10.0, 30.0), rate_bps=(1e6, 2e6))
    direction = Direction(5, 4, "normal", trace=trace)
    assert replace(direction_in_row(direction, 1), trace=None) == Direction(30, 4, "normal", 2e6)
