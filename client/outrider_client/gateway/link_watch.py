"""Where the link stands, for people: what answers under way say of it, and a look at the server while none are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

from outrider_client.async_client import AsyncClient
from outrider_client.connection.link_state import LinkState
from outrider_client.core.events import Event, LinkChanged, Stats
from outrider_client.core.statistics import Statistics
from outrider_client.gateway.session_pool import SessionPool
from outrider_client.privacy.safe_prefix import HUNG_UP
from outrider_proto.errors import OutriderError

WATCHED_S = 1.0  # between two looks while somebody watches or there is no link
_IDLE_S = 5.0
_PATIENCE_S = 2.0
_SEEN = (LinkState.ONLINE, LinkState.RESUMING)


class Probe(Protocol):
    """Looks at the server; returns the round trip in seconds, or raises OutriderError."""

    async def measure(self) -> float: ...


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What is known now. `tau`, tokens/s and mode are those of the answer under way, or of the last one."""

    state: LinkState
    rtt_s: float | None
    statistics: Statistics
    mode: str | None
    num_bytes: tuple[int, int]


class LinkWatch:
    """`say` is told when the link comes and goes."""

    def __init__(self, pool: SessionPool, probe: Probe, say: Callable[[LinkState], None]) -> None:
        self.state = LinkState.CONNECTING
        self._pool = pool
        self._probe = probe
        self._say = say
        self._rtt_s: float | None = None
        self._statistics = Statistics()
        self._mode: str | None = None
        self._changed = asyncio.Event()
        self._num_watchers = 0

    def took(self, client: AsyncClient, event: Event) -> None:
        """An answer goes on."""
        match event:
            case LinkChanged(detail=detail) if detail == HUNG_UP:
                pass  # nothing is wrong with the link
            case LinkChanged(state=state) if state not in (LinkState.CONNECTING, LinkState.CLOSED):
                self._becomes(state)
            case Stats(statistics=statistics):
                self._statistics, self._mode = statistics, client.active_mode
                self._rtt_s = client.rtt_s
                if client.link_state is LinkState.ONLINE:
                    self._becomes(LinkState.ONLINE)
            case _:
                pass

    def touch(self) -> None:
        """Something that watchers want to see has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def report(self) -> LinkReport:
        sums = [client.num_bytes for client in self._pool.clients]
        num_bytes = sum(up for up, _ in sums), sum(down for _, down in sums)
        return LinkReport(self.state, self._rtt_s, self._statistics, self._mode, num_bytes)

    async def reports(self) -> AsyncGenerator[LinkReport, None]:
        """One at once, at every change, and every second."""
        self._num_watchers += 1
        try:
            while True:
                yield self.report
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WATCHED_S):
                        await self._changed.wait()
        finally:
            self._num_watchers -= 1

    async def run(self) -> None:
        """Look at the server from time to time, for ever; also while a private answer is written, since a pause would
        tell how long that takes."""
        while True:
            if self._pool.num_telling == 0:
                await self._look()
            watched = self._num_watchers or self.state not in _SEEN
            await asyncio.sleep(WATCHED_S if watched else _IDLE_S)

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                self._rtt_s = await self._probe.measure()
        except (OutriderError, TimeoutError):
            found = LinkState.OFFLINE
        else:
            found = LinkState.ONLINE
        if self._pool.num_telling == 0:  # else an answer has begun meanwhile, and knows better
            self._becomes(found)

    def _becomes(self, state: LinkState) -> None:
        if state is not self.state:
            self.state = state
            self._say(state)
            self.touch()
