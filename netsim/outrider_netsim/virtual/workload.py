"""A request-reply workload in virtual time: what a drafting loop asks of a link.

python -m outrider_netsim.virtual.workload paper-4g 3600        prints the round trips and the run time
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
class RequestReplyWorkload:
    """Sizes of a request and its reply, and how long the server takes in between."""

    request_bytes: int = 100  # a draft tree of 16 nodes, framed
    answer_bytes: int = 3000  # a verdict and the features of five tokens
    think_s: float = 0.033  # the paper's verify time


DRAFTING_WORKLOAD = RequestReplyWorkload()


def round_trips_s(
    link: VirtualLink, duration_s: float, workload: RequestReplyWorkload = DRAFTING_WORKLOAD
) -> list[float]:
    """Repeat `workload` over one connection for `duration_s` and return each round trip, server time subtracted."""
    return link.clock.run(_both_ends(link, duration_s, workload))


async def _both_ends(link: VirtualLink, duration_s: float, workload: RequestReplyWorkload) -> list[float]:
    async with asyncio.TaskGroup() as group:
        group.create_task(_serve(link, workload))
        return await _ask(link, duration_s, workload)


async def _ask(link: VirtualLink, duration_s: float, workload: RequestReplyWorkload) -> list[float]:
    clock = link.clock
    end, taken = clock.now + duration_s, []
    pipe = await link.connect()
    while clock.now < end:
        asked_at = clock.now
        pipe.send(b"", workload.request_bytes)
        await pipe.receive()
        taken.append(clock.now - asked_at - workload.think_s)
    pipe.close()
    return taken


async def _serve(link: VirtualLink, workload: RequestReplyWorkload) -> None:
    pipe = await link.accept()
    while True:
        try:
            await pipe.receive()
        except EOFError:
            return
        await asyncio.sleep(workload.think_s)
        pipe.send(b"", workload.answer_bytes)


def main(name: str = "paper-4g", duration: str = "3600") -> None:
    """Time a run and print its round trips."""
    profile, started_at = profile_named(name), time.perf_counter()
    link = VirtualLink(profile)
    taken = round_trips_s(link, float(duration))
    took_s = time.perf_counter() - started_at
    deciles = [f"{d * 1000:.0f}" for d in statistics.quantiles(taken, n=10)]
    print(f"{name}: {len(taken):,} round trips in {link.clock.now:,.0f} s of virtual time, {took_s:.1f} s of real time")
    print(f"round trip: mean {statistics.mean(taken) * 1000:.1f} ms, deciles {' '.join(deciles)} ms")
    print(link.stats)


if __name__ == "__main__":
    main(*sys.argv[1:])
