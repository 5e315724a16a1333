"""A planned outage in which the kernel engine holds packets, beside what a Path does with the same packets.

Arguments: {"directions": {name: keys of a Direction}, "packets": of each, "spacing_s": between them, "hold_s": its
length, "start_s": its start after the link's}. Of each: packets that came, and mean and longest delay in ms, of both.
The Path's hold ends when the kernel's did, which is where the longest pause of arrivals ends.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from typing import Any

import guest_kernel

from outrider_netsim.core.addresses import Address
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.kernel import KernelLink
from outrider_netsim.impairments import Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Direction, Profile


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: asyncio.run(_measure(Direction(**keys), arguments)) for name, keys in arguments["directions"].items()}


async def _measure(direction: Direction, arguments: dict[str, Any]) -> dict[str, Any]:
    hold = Outage(arguments["hold_s"], arguments["start_s"], hold=True)
    profile = Profile.symmetric("held", direction, outages=(hold,))
    async with KernelLink(LinkPlan(profile, Address("127.0.0.1", 9), seed=1)) as link:
        source, sink = await guest_kernel.udp_pair(link)
        packets, spacing_s = arguments["packets"], arguments["spacing_s"]
        # In a thread: the hold itself happens on the event loop.
        sent, received = await asyncio.to_thread(
            guest_kernel.send, source, sink, packets, spacing_s, guest_kernel.FULL_BYTES
        )
        stats = link.stats.up
    pause_s, end_s = max((b - a, b) for a, b in itertools.pairwise(sorted(when / 1e9 for when in received.values())))
    kernel = _summary([when / 1e6 - sent[number] / 1e6 for number, when in received.items()])
    return {
        "pause_s": pause_s,
        "dropped": stats.lost + stats.dropped_by_queue + stats.dropped_by_outage,
        "kernel": kernel,
        "path": _summary(_expected(direction, sent, end_s - hold.duration_s, hold.duration_s)),
    }


def _expected(direction: Direction, sent_ns: list[int], start_s: float, duration_s: float) -> list[float]:
    path = Path(direction, 1, (Outage(duration_s, start_s - sent_ns[0] / 1e9, hold=True),), started_at=sent_ns[0] / 1e9)
    delays_ms: list[float] = []

    def poll(now: float) -> None:
        while (when := path.next_event()) is not None and when <= now:
            delays_ms.extend(1000 * when - sent_ns[int(packet.data)] / 1e6 for packet in path.pop_ready(when))

    for number, when in enumerate(sent_ns):
        poll(when / 1e9)
        path.push(Packet(b"%d" % number, guest_kernel.LINK_BYTES), when / 1e9)
    poll(float("inf"))
    return delays_ms


def _summary(delays_ms: list[float]) -> dict[str, float]:
    return {"came": len(delays_ms), "mean_ms": statistics.mean(delays_ms), "most_ms": max(delays_ms)}
