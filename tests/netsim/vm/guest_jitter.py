"""Lone packets through the kernel engine: delays of those that arrive, how neighbors' correlate, and what else comes.

Arguments: {"directions": {name: keys of a Direction}, "packets": each, one every "spacing_s"}.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from typing import Any

import guest_kernel

from outrider_netsim.core.addresses import Address
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.kernel import KernelLink
from outrider_netsim.profiles.profile import Bursts, Direction, Profile


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    return asyncio.run(_measure(arguments))


async def _measure(arguments: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with KernelLink(LinkPlan(Profile.symmetric("none", Direction()), Address("127.0.0.1", 9), seed=1)) as link:
        source, sink = await guest_kernel.udp_pair(link)
        for name, keys in arguments["directions"].items():
            if "bursts" in keys:
                keys["bursts"] = Bursts(**keys["bursts"])
            direction = Direction(**keys)
            link.set(Profile(name, direction, Direction()))
            before, cpu_s = link.stats.up, time.process_time()
            # In a thread: the loop follows a coherent delay meanwhile.
            sent, received = await asyncio.to_thread(
                guest_kernel.send, source, sink, arguments["packets"], arguments["spacing_s"], guest_kernel.SMALL_BYTES
            )
            after = link.stats.up
            delays_ms = {number: (when - sent[number]) / 1e6 for number, when in received.items()}
            pairs = [(delays_ms[n], delays_ms[n + 1]) for n in delays_ms if n + 1 in delays_ms]
            order = sorted(received, key=lambda number: received[number])
            found[name] = {
                "mean_ms": [statistics.mean(delays_ms.values()), direction.mean_delay_ms],
                "deviation_ms": [statistics.pstdev(delays_ms.values()), direction.delay_deviation_ms],
                "correlation": statistics.correlation(*zip(*pairs, strict=True)) if direction.jitter_ms else None,
                "overtaken": sum(later < earlier for earlier, later in itertools.pairwise(order)),
                "lost": [1 - len(received) / len(sent), direction.mean_loss],
                "counted": after.lost - before.lost,
                "missing": len(sent) - len(received),
                "out": after.packets_out - before.packets_out,
                "instants": 1 + sum(b - a > 1e6 for a, b in itertools.pairwise(sorted(received.values()))),
                "cpu_share": (time.process_time() - cpu_s) / (arguments["packets"] * arguments["spacing_s"]),
            }
    return found
