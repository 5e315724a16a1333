"""The address that clients connect to: an emulated link or the server itself, its traffic, and its round trip R.

R is measured by a small frame that reaches no model, over the same link, between the answers.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from outrider_bench.core.stats import percentiles
from outrider_client.connection.grpc_transport import GrpcConnection, GrpcTransport
from outrider_netsim import EngineChoice, EngineError, Link, Profile, ProfileError, profile_named
from outrider_proto.errors import LinkError, UsageError
from outrider_proto.frames import Open, Ping

NO_LINK = "none"  # the profile's name for both sides on one device
PINGS_A_RUN = 200  # at least, unless they take longer than MOST_PINGING_S, or answers are few
MOST_PINGING_S = 30.0  # in a run; there is always one ping before an answer
MOST_BEFORE_ONE = 10  # answer: a run of few answers would spend its time on pings
_PAUSE_S = 0.01
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """IP packets and bytes that entered the link so far, acknowledgements included."""

    packets_up: int = 0
    packets_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def since(self, before: LinkTraffic) -> LinkTraffic:
        return LinkTraffic(
            self.packets_up - before.packets_up,
            self.packets_down - before.packets_down,
            self.bytes_up - before.bytes_up,
            self.bytes_down - before.bytes_down,
        )


@dataclass(frozen=True, slots=True)
class LinkEndpoint:
    """The address that clients connect to, and the link behind it.

    `engine` and `why`: what makes the link; `traffic` returns None without a link.
    """

    address: str
    traffic: Callable[[], LinkTraffic | None] = lambda: None
    engine: str = NO_LINK
    why: str = "both sides on one device"


def profile_or_none(name: str) -> Profile | None:
    """Return the named profile; None for `none`. Raises UsageError."""
    try:
        return None if name == NO_LINK else profile_named(name)
    except ProfileError as error:
        raise UsageError(f"{error}; none for no link") from None


@asynccontextmanager
async def open_link(
    profile: Profile | None, server: str, engine: EngineChoice, seed: int
) -> AsyncIterator[LinkEndpoint]:
    """Put a link in front of the server while the context lasts.

    Raises UsageError where this machine cannot emulate it.
    """
    if profile is None:
        yield LinkEndpoint(server)
        return
    # Not `async with`: only an EngineError of the start is the user's, not one raised inside the context.
    link = Link(profile, server, engine, seed)
    try:
        await link.start()
    except EngineError as error:
        raise UsageError(f"engine={engine}: {error}") from None
    try:
        yield LinkEndpoint(link.address, lambda: _traffic(link), link.engine, link.why)
    finally:
        await link.aclose()


def _traffic(link: Link) -> LinkTraffic:
    stats = link.stats
    return LinkTraffic(stats.up.packets_in, stats.down.packets_in, stats.up.bytes_in, stats.down.bytes_in)


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
        shares = percentiles(times_ms)
        return cls(
            len(times_ms),
            round(statistics.fmean(times_ms), 3),
            round(shares["p50"], 3),
            round(shares["p95"], 3),
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

    async def __aexit__(self, *_: object) -> None:
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
