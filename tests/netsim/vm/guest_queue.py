"""Floods of the kernel engine's queues, beside what a Path does with the same packets at the same times.

Arguments: {"directions": {name: keys of a Direction}, "packets": of each flood, "spacing_s": between them}. Of each:
[dropped by the queue, mean and longest delay in ms, packets that came after a later one] of both, delays less the first
packet's serialization.
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
from outrider_netsim.profiles.profile import Direction, Profile


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    return asyncio.run(_measure(arguments))


async def _measure(arguments: dict[str, Any]) -> dict[str, Any]:
    directions = {name: Direction(**keys) for name, keys in arguments["directions"].items()}
    profiles = [Profile.symmetric(name, direction) for name, direction in directions.items()]
    found: dict[str, Any] = {}
    async with KernelLink(LinkPlan(profiles[0], Address("127.0.0.1", 9), seed=1)) as link:
        source, sink = await guest_kernel.udp_pair(link)
        for profile in profiles:
            link.set(profile)
            before = link.stats.up
            sent, received = guest_kernel.send(
                source, sink, arguments["packets"], arguments["spacing_s"], guest_kernel.FULL_BYTES
            )
            after = link.stats.up
            found[profile.name] = {
                "kernel": {
                    "dropped": after.dropped_by_queue - before.dropped_by_queue,
                    "lost": after.lost - before.lost,
                    **_summary({n: (when - sent[n]) / 1e6 for n, when in received.items()}, received),
                },
                "path": _expected(profile.up, sent),
            }
    return found


def _expected(direction: Direction, sent_ns: list[int]) -> dict[str, float]:
    # Of a single flow fq_codel makes what codel does.
    path = Path(replace(direction, aqm="none" if direction.aqm == "none" else "codel"), 1)
    received: dict[int, float] = {}

    def poll(now: float) -> None:
        while (when := path.next_event()) is not None and when <= now:
            received.update({int(packet.data): when for packet in path.pop_ready(when)})

    for number, when in enumerate(sent_ns):
        poll(when / 1e9)
        path.push(Packet(b"%d" % number, guest_kernel.LINK_BYTES), when / 1e9)
    poll(float("inf"))
    delays = {number: (when - sent_ns[number] / 1e9) * 1000 for number, when in received.items()}
    return {"dropped": path.stats.dropped_by_queue, "lost": path.stats.lost, **_summary(delays, received)}


def _summary(delays_ms: dict[int, float], received: dict[int, Any]) -> dict[str, float]:
    order = sorted(received, key=lambda number: received[number])
    return {
        "came": len(delays_ms),
        "mean_ms": statistics.mean(delays_ms.values()),
        "most_ms": max(delays_ms.values()),
        "overtaken": sum(later < earlier for earlier, later in itertools.pairwise(order)),
    }
