"""A request and its answer, over and over, for so long of virtual time: what a drafting loop asks of a link.

python -m outrider_netsim.virtual.exchange paper-4g 3600        prints the round trips, and how long the run took
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from dataclasses import dataclass

from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.virtual.link import VirtualLink


@dataclass(frozen=True, slots=True)
class Exchange:
    """Sizes of a request and its answer, and how long the server takes between them."""

    request_bytes: int = 100  # a draft tree of 16 nodes, framed
    answer_bytes: int = 3000  # a verdict and the features of five tokens
    think_s: float = 0.033  # the paper's verify time


DRAFTING = Exchange()


def round_trips_s(link: VirtualLink, duration_s: float, exchange: Exchange = DRAFTING) -> list[float]:
    """Repeat `exchange` over one connection until `duration_s` have passed; what each took, less the thinking."""
    return link.clock.run(_both_ends(link, duration_s, exchange))


async def _both_ends(link: VirtualLink, duration_s: float, exchange: Exchange) -> list[float]:
    async with asyncio.TaskGroup() as group:
        group.create_task(_serve(link, exchange))
        return await _ask(link, duration_s, exchange)


async def _ask(link: VirtualLink, duration_s: float, exchange: Exchange) -> list[float]:
    clock = link.clock
    end, taken = clock.now + duration_s, []
    pipe = await link.connect()
    while clock.now < end:
        asked_at = clock.now
        pipe.send(b"", exchange.request_bytes)
        await pipe.receive()
        taken.append(clock.now - asked_at - exchange.think_s)
    pipe.close()
    return taken


async def _serve(link: VirtualLink, exchange: Exchange) -> None:
    pipe = await link.accept()
    while True:
        try:
            await pipe.receive()
        except EOFError:
            return
        await asyncio.sleep(exchange.think_s)
        pipe.send(b"", exchange.answer_bytes)


def main(name: str = "paper-4g", duration: str = "3600") -> None:
    """Time a run, and say what it saw."""
    profile, started_at = profile_named(name), time.perf_counter()
    link = VirtualLink(profile)
    taken = round_trips_s(link, float(duration))
    took_s = time.perf_counter() - started_at
    deciles = [f"{d * 1000:.0f}" for d in statistics.quantiles(taken, n=10)]
    print(f"{name}: {len(taken):,} exchanges in {link.clock.now:,.0f} s of virtual time, {took_s:.1f} s of real time")
    print(f"round trip: mean {statistics.mean(taken) * 1000:.1f} ms, deciles {' '.join(deciles)} ms")
    print(link.stats)


if __name__ == "__main__":
    main(*sys.argv[1:])
