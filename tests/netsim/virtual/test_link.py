"""The virtual link: reproducible from a seed, with outages on time, and programs that talk over it."""

import asyncio
import contextlib
import csv
from collections import Counter

import pytest

from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.virtual.clock import StandstillError, VirtualClock
from outrider_netsim.virtual.link import VirtualLink

STEADY = Profile.symmetric("steady", Direction(delay_ms=50))


def exchange(link, duration_s):
    """Send requests and answers over one connection."""

    async def serve():
        pipe = await link.accept()
        with contextlib.suppress(EOFError):
            while True:
                await pipe.receive()
                await asyncio.sleep(0.033)
                pipe.send(b"", 3000)

    async def both_ends():
        async with asyncio.TaskGroup() as group:
            group.create_task(serve())
            pipe, end = await link.connect(), link.clock.now + duration_s
            while link.clock.now < end:
                pipe.send(b"", 100)
                await pipe.receive()
            pipe.close()

    link.clock.run(both_ends())


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


def test_what_is_closed_takes_no_message_and_has_none():
    link = VirtualLink(STEADY)

    async def program():
        pipe = await link.connect()
        for _ in range(2):
            pipe.close()
        with pytest.raises(BrokenPipeError, match="connect again"):
            pipe.send(b"", 100)
        server = await link.accept()
        for _ in range(2):
            with pytest.raises(EOFError, match="closed the connection"):
                await server.receive()

    link.clock.run(program())
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
            exchange(link, 20)
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
