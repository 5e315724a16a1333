"""The measured round trip R: a small frame that reaches no model, over the same link, between the answers."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from outrider_bench.core.stats import quantile
from outrider_client.connection.grpc_transport import GrpcConnection, GrpcTransport
from outrider_proto.errors import LinkError
from outrider_proto.frames import Open, Ping

PINGS_A_RUN = 200  # at least, unless they take longer than MOST_PINGING_S, or answers are few
MOST_PINGING_S = 30.0  # in a run; there is always one ping before an answer
MOST_BEFORE_ONE = 10  # answer: a run of few answers would spend its time on pings
_PAUSE_S = 0.01
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class PingStats:
    """Round trips in ms. The mean is R: it includes jitter, and what gRPC and the machine add."""

    pings: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    standard_error_ms: float = 0.0  # of the mean; 0 for a single ping

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> PingStats:
        return cls(
            len(times_ms),
            round(statistics.fmean(times_ms), 3),
            round(quantile(times_ms, 0.5), 3),
            round(quantile(times_ms, 0.95), 3),
            round(statistics.stdev(times_ms) / len(times_ms) ** 0.5, 3) if len(times_ms) > 1 else 0.0,
        )


def pings_before_each(answers: int) -> tuple[int, float]:
    """Return how many pings to send before each of a run's `answers`, and the seconds that they may take."""
    return min(max(1, -(-PINGS_A_RUN // answers)), MOST_BEFORE_ONE), MOST_PINGING_S / answers


class Pinger:
    """A session of its own, alone on its connection; use it as a context manager.

    `clock` counts seconds.
    """

    def __init__(self, address: str, open_frame: Open, clock: Callable[[], float]) -> None:
        self._transport = GrpcTransport(address)
        self._open_frame = open_frame
        self._clock = clock
        self._connection: GrpcConnection | None = None
        self._sent = 0

    async def __aenter__(self) -> Self:
        self._connection = await self._transport.connect()
        await self._exchange(self._open_frame)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def ping(self, count: int, most_s: float) -> list[float]:
        """Send `count` pings one at a time, each after a short pause, and return their round trips in ms.

        None starts after `most_s` seconds but the first. Raises LinkError.
        """
        give_up_at, times_ms = self._clock() + most_s, list[float]()
        while len(times_ms) < count and (not times_ms or self._clock() < give_up_at):
            # Pings in a row would keep both processes awake and measure too short an R.
            await asyncio.sleep(_PAUSE_S)
            started = self._clock()
            await self._exchange(Ping(self._sent))
            times_ms.append((self._clock() - started) * 1e3)
            self._sent += 1
        return times_ms

    async def _exchange(self, frame: Open | Ping) -> None:
        assert self._connection is not None
        self._connection.send(frame)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._connection.receive()
        except TimeoutError as error:
            raise LinkError(f"{self._transport.address}: no answer to a ping within {_TIMEOUT_S:g} s") from error
