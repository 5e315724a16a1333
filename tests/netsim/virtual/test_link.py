"""The virtual link: reproducible from a seed, with outages on time, and programs that talk over it."""

import asyncio
import contextlib
import csv
import statistics
from collections import Counter

import pytest
from scipy import stats

from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.virtual.clock import StandstillError, VirtualClock
from outrider_netsim.virtual.link import VirtualLink

FALSE_ALARM = 1e-3  # of each statistical test, were its seed not fixed
STEADY = Profile.symmetric("steady", Direction(delay_ms=50))


def round_trips_s(link, duration_s, request_bytes=100, answer_bytes=3000, think_s=0.033):
    """Exchange requests and answers over one connection; return each round trip, the server's time subtracted."""

    async def serve():
        pipe = await link.accept()
        with contextlib.suppress(EOFError):
            while True:
                await pipe.receive()
                await asyncio.sleep(think_s)
                pipe.send(b"", answer_bytes)

    async def both_ends():
        async with asyncio.TaskGroup() as group:
            group.create_task(serve())
            pipe, end, taken = await link.connect(), link.clock.now + duration_s, []
            while link.clock.now < end:
                asked_at = link.clock.now
                pipe.send(b"", request_bytes)
                await pipe.receive()
                taken.append(link.clock.now - asked_at - think_s)
            pipe.close()
        return taken

    return link.clock.run(both_ends())


def test_planned_outages_and_cuts_are_in_virtual_time():
    link = VirtualLink(Profile("cut", STEADY.up, STEADY.down, outages=(Outage(1, 2, every_s=10),)))
    seen = []
    for second in range(15):
        link.clock.run_until(second + 0.5)
        link.send("up", 100, lambda second=second: seen.append(second))
        if second == 5:
            link.cut()
        if second == 7:
            link.restore()
    link.clock.run_until(20)
    assert seen == [n for n in range(15) if n not in (2, 6, 7, 12)]


@pytest.mark.parametrize("name", ["paper-5g", "paper-4g"])
def test_round_trips_of_programs_follow_the_profile(name):
    """Small messages, so that each way is one packet; some round trips hold a retransmission, which losses explain."""
    profile = profile_named(name)
    link = VirtualLink(profile, 4)
    taken = round_trips_s(link, 300, request_bytes=34, answer_bytes=34, think_s=0.2)
    wire_s = 2 * 100 * 8 / profile.up.rate_bps
    alone = [t - wire_s for t in taken if t < 0.2]  # the least time in which a packet is sent again
    assert 0.98 * len(taken) < len(alone) <= len(taken)
    deviation_s = (profile.up.delay_deviation_ms**2 + profile.down.delay_deviation_ms**2) ** 0.5 / 1000
    z = (statistics.mean(alone) - profile.round_trip_ms / 1000) / (deviation_s / len(alone) ** 0.5)
    assert 2 * stats.norm.sf(abs(z)) > FALSE_ALARM
    assert statistics.stdev(alone) == pytest.approx(deviation_s, rel=0.1)


def test_messages_go_whole_and_in_order_both_ways_and_end():
    link = VirtualLink(profile_named("paper-4g"), 7)

    async def server():
        pipe = await link.accept()
        try:
            while True:
                payload = await pipe.receive()
                pipe.send(("echo", payload), 5000)
        except EOFError:
            pipe.close()

    async def client():
        pipe = await link.connect()
        for n in range(50):
            pipe.send(n, 100)
        pipe.close()
        pipe.close()
        with pytest.raises(BrokenPipeError, match="connect again"):
            pipe.send(50, 100)
        got = [await pipe.receive() for _ in range(50)]
        for _ in range(2):
            with pytest.raises(EOFError, match="closed the connection"):
                await pipe.receive()
        return got

    async def both():
        async with asyncio.TaskGroup() as group:
            group.create_task(server())
            return await client()

    assert link.clock.run(both()) == [("echo", n) for n in range(50)]
    assert link.stats.connections == 1


def test_connecting_over_a_cut_link_waits_for_it_and_in_the_end_gives_up():
    link = VirtualLink(STEADY)
    link.cut()
    link.clock.call_at(2.0, link.restore)
    link.clock.run(link.connect())
    assert 2.1 < link.clock.now < 2.5  # tried every second at first, by Linux's coarse timers
    link.cut()
    with pytest.raises(TimeoutError, match="restore it and connect again"):
        link.clock.run(link.connect())


def test_another_loop_is_refused():
    link = VirtualLink(STEADY)
    with pytest.raises(RuntimeError, match="run the program with clock"):
        VirtualClock().run(link.connect())
    with pytest.raises(StandstillError):
        link.clock.run(link.accept())


def test_a_log_has_a_line_for_every_packet_and_the_same_ones_again(tmp_path):
    logs = []
    for name, seed in (("first.csv", 1), ("second.csv", 1), ("other.csv", 2)):
        link = VirtualLink(profile_named("paper-4g"), seed)
        link.clock.call_at(5.0, link.cut)
        link.clock.call_at(8.0, link.restore)
        link.clock.call_at(12.0, lambda link=link: link.set(profile_named("paper-5g")))
        with link.packet_log(tmp_path / name):
            round_trips_s(link, 20)
        logs.append((tmp_path / name).read_text())
        lines = list(csv.DictReader(logs[-1].splitlines()))
        assert Counter((line["direction"], line["fate"]) for line in lines if line["fate"] != "under way") == +Counter(
            {
                ("up", "arrived"): link.stats.up.packets_out,
                ("up", "lost"): link.stats.up.lost,
                ("down", "arrived"): link.stats.down.packets_out,
                ("down", "lost"): link.stats.down.lost,
                ("up", "outage"): link.stats.up.dropped_by_outage,
                ("down", "outage"): link.stats.down.dropped_by_outage,
            }
        )
    assert logs[0] == logs[1] != logs[2]
