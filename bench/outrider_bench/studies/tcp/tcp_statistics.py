"""Exchanges of every size after every idle time, and their medians and quantiles. Standard library only."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider_bench.core.stats import quantile
from outrider_bench.studies.tcp.tcp_exchange import Exchanger, ExchangeShape, ExchangeTiming


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """`repeats` exchanges per size and idle time, over `connections` fresh connections.

    A connection's first exchange is counted apart: nothing is known about the link then, and no window has grown.
    """

    shapes: tuple[ExchangeShape, ...]
    idles_s: tuple[float, ...]
    repeats: int = 20
    connections: int = 4

    @property
    def cells(self) -> list[tuple[ExchangeShape, float]]:
        return [(shape, idle_s) for shape in self.shapes for idle_s in self.idles_s]

    @property
    def per_connection(self) -> int:
        return -(-self.repeats // self.connections)


@dataclass(frozen=True, slots=True)
class ExchangeStats:
    """Statistics of one size after one idle time (None: first on a connection), in ms.

    The counts are the replying kernel's, summed over all exchanges; `cwnd` and `reordering` are medians.
    """

    reply_bytes: int
    idle_s: float | None
    exchanges: int
    first_ms: float
    whole_ms: float
    p90_ms: float
    p95_ms: float
    most_ms: float
    packets: int
    resent: int
    needless: int
    cwnd: float
    reordering: float

    @classmethod
    def of(cls, shape: ExchangeShape, idle_s: float | None, timings: Sequence[ExchangeTiming]) -> ExchangeStats:
        whole = [timing.whole_ms for timing in timings]
        return cls(
            reply_bytes=shape.reply,
            idle_s=idle_s,
            exchanges=len(timings),
            first_ms=_rounded(statistics.median(timing.first_ms for timing in timings)),
            whole_ms=_rounded(statistics.median(whole)),
            p90_ms=_rounded(quantile(whole, 0.90)),
            p95_ms=_rounded(quantile(whole, 0.95)),
            most_ms=_rounded(max(whole)),
            packets=sum(timing.packets for timing in timings),
            resent=sum(timing.resent for timing in timings),
            needless=sum(timing.needless for timing in timings),
            cwnd=statistics.median(timing.cwnd for timing in timings),
            reordering=statistics.median(timing.reordering for timing in timings),
        )


async def measure_exchanges(
    connect: Callable[[], Exchanger], plan: ExchangePlan, step: Callable[[], None] = lambda: None
) -> list[ExchangeStats]:
    """Return the statistics in the plan's order, then one per size for first exchanges.

    Raises as `exchange`.
    """
    cells = []
    firsts: dict[ExchangeShape, list[ExchangeTiming]] = {shape: [] for shape in plan.shapes}
    for shape, idle_s in plan.cells:
        later: list[ExchangeTiming] = []
        for _ in range(plan.connections):
            async with connect() as connection:
                firsts[shape].append(await connection.exchange(shape))
                later += [await _after(idle_s, connection, shape) for _ in range(plan.per_connection)]
            step()
        cells.append(ExchangeStats.of(shape, idle_s, later))
    return cells + [ExchangeStats.of(shape, None, timings) for shape, timings in firsts.items()]


async def _after(idle_s: float, connection: Exchanger, shape: ExchangeShape) -> ExchangeTiming:
    await asyncio.sleep(idle_s)
    return await connection.exchange(shape)


def _rounded(ms: float) -> float:
    return round(ms, 2)
