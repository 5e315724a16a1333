"""Packets through the kernel engine, and the same packets at the same times through a Path: what came of both.

Arguments: {"cases": {name: keys of a Direction}, "packets": of each, one every "spacing_s", of "payload_bytes",
"hold_s": how long a planned outage holds them, from "start_s" after the link's start}.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from dataclasses import replace
from typing import Any

import guest_kernel

from outrider_netsim.core.addresses import Address
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.kernel import KernelLink
from outrider_netsim.impairments import Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.profiles.profile import Bursts, Direction, Outage, Profile

HEADER_BYTES = 42  # as the rate counts them


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    return asyncio.run(_measure(arguments))


async def _measure(arguments: dict[str, Any]) -> dict[str, Any]:
    found = {}
    directions = {name: _direction(keys) for name, keys in arguments["cases"].items()}
    if "hold_s" in arguments:
        # An outage counts from its link's start.
        hold = Outage(arguments["hold_s"], arguments["start_s"], hold=True)
        for name, direction in directions.items():
            async with KernelLink(_plan(Profile.symmetric(name, direction, outages=(hold,)))) as link:
                found[name] = await _case(link, direction, arguments)
        return found
    async with KernelLink(_plan(Profile.symmetric("none", Direction()))) as link:
        for name, direction in directions.items():
            link.set(Profile(name, direction, Direction()))
            found[name] = await _case(link, direction, arguments)
    return found


async def _case(link: KernelLink, direction: Direction, arguments: dict[str, Any]) -> dict[str, Any]:
    source, sink = await guest_kernel.udp_pair(link)
    before, size_bytes = link.stats.up, arguments["payload_bytes"]
    # In a thread: coherent delays and holds happen on the event loop.
    sent, received = await asyncio.to_thread(
        guest_kernel.send, source, sink, arguments["packets"], arguments["spacing_s"], size_bytes
    )
    after = link.stats.up
    seen = _summary(sent, received) | {
        "dropped": after.dropped_by_queue - before.dropped_by_queue,
        "lost": after.lost - before.lost,
        "out": after.packets_out - before.packets_out,
    }
    # In a Path the hold ends when the kernel's did, which is where the longest pause of arrivals ends.
    hold_s = arguments.get("hold_s")
    return {"kernel": seen, "path": _path(direction, sent, size_bytes, hold_s, seen["pause_ends_ns"])}


def _path(
    direction: Direction, sent_ns: list[int], size_bytes: int, hold_s: float | None, pause_ends_ns: int
) -> dict[str, Any]:
    start_ns = sent_ns[0]
    outages = (Outage(hold_s, (pause_ends_ns - start_ns) / 1e9 - hold_s, hold=True),) if hold_s else ()
    # Of a single flow fq_codel makes what codel does.
    aqm = "codel" if direction.aqm == "fq_codel" else direction.aqm
    path = Path(replace(direction, aqm=aqm), 1, outages)
    received: dict[int, int] = {}

    def poll(now: float) -> None:
        while (when := path.next_event()) is not None and when <= now:
            for packet in path.pop_ready(when):
                # A corrupt one fails its checksum.
                if not packet.is_corrupt:
                    received.setdefault(int(packet.data), start_ns + round(when * 1e9))

    for number, when in enumerate(sent_ns):
        poll((when - start_ns) / 1e9)
        path.push(Packet(b"%d" % number, size_bytes + HEADER_BYTES), (when - start_ns) / 1e9)
    poll(float("inf"))
    stats = path.stats
    return _summary(sent_ns, received) | {"dropped": stats.dropped_by_queue, "lost": stats.lost}


def _summary(sent_ns: list[int], received_ns: dict[int, int]) -> dict[str, Any]:
    delays_ms = {number: (when - sent_ns[number]) / 1e6 for number, when in received_ns.items()}
    pairs = [(delays_ms[n], delays_ms[n + 1]) for n in delays_ms if n + 1 in delays_ms]
    order = sorted(received_ns, key=lambda number: received_ns[number])
    gaps = [(later - earlier, later) for earlier, later in itertools.pairwise(sorted(received_ns.values()))]
    deviation_ms = statistics.pstdev(delays_ms.values())
    return {
        "came": len(received_ns),
        "mean_ms": statistics.mean(delays_ms.values()),
        "deviation_ms": deviation_ms,
        "most_ms": max(delays_ms.values()),
        "correlation": statistics.correlation(*zip(*pairs, strict=True)) if deviation_ms > 1 else 0.0,
        "overtaken": sum(later < earlier for earlier, later in itertools.pairwise(order)),
        "instants": 1 + sum(gap > 1e6 for gap, _ in gaps),
        "pause_s": max(gaps)[0] / 1e9,
        "pause_ends_ns": max(gaps)[1],
    }


def _direction(keys: dict[str, Any]) -> Direction:
    return Direction(**keys | {"bursts": Bursts(**keys["bursts"])} if "bursts" in keys else keys)


def _plan(profile: Profile) -> LinkPlan:
    return LinkPlan(profile, Address("127.0.0.1", 9), seed=1)
