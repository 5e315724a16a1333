"""Watches the state of the link: from the answers in progress, and by probing the server while there are none."""

from __future__ import annotations

import asyncio
import contextlib
import time
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

WATCHED_S = 1.0  # between probes while a page watches, or the link is down
_IDLE_S = 5.0  # between probes otherwise
_PROBE_TIMEOUT_S = 2.0
_REACHABLE = (LinkState.ONLINE, LinkState.RESUMING)


class Probe(Protocol):
    """Measures the round trip to the server."""

    async def measure(self) -> float:
        """Return the round trip in seconds. Raises OutriderError."""
        ...


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The link's state, and statistics and mode of the answer in progress, or else of the last one."""

    state: LinkState
    rtt_s: float | None
    statistics: Statistics
    mode: str | None
    num_bytes: tuple[int, int]


class LinkWatch:
    """Calls `on_change` with each new state of the link."""

    def __init__(self, pool: SessionPool, probe: Probe, on_change: Callable[[LinkState], None]) -> None:
        self.state = LinkState.CONNECTING
        self._pool = pool
        self._probe = probe
        self._on_change = on_change
        self._offline_since: float | None = None
        self._rtt_s: float | None = None
        self._statistics = Statistics()
        self._mode: str | None = None
        self._changed = asyncio.Event()
        self._num_watchers = 0

    def observe(self, client: AsyncClient, event: Event) -> None:
        """Update from an event of an answer."""
        match event:
            case LinkChanged(detail=detail) if detail == HUNG_UP:
                pass  # closed on purpose for a private answer: nothing is wrong with the link
            case LinkChanged(state=state) if state not in (LinkState.CONNECTING, LinkState.CLOSED):
                self._set_state(state)
            case Stats(statistics=statistics):
                self._statistics, self._mode = statistics, client.active_mode
                self._rtt_s = client.rtt_s
                if client.link_state is LinkState.ONLINE:
                    self._set_state(LinkState.ONLINE)
            case _:
                pass

    @property
    def offline_s(self) -> float | None:
        """Seconds that the link has been down; None if it is not."""
        return None if self._offline_since is None else time.monotonic() - self._offline_since

    def notify(self) -> None:
        """Wake all that wait in `reports`."""
        # A new event for the next change: clearing this one could beat a waiter to its wake-up.
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def report(self) -> LinkReport:
        sums = [client.num_bytes for client in self._pool.clients]
        num_bytes = sum(up for up, _ in sums), sum(down for _, down in sums)
        return LinkReport(self.state, self._rtt_s, self._statistics, self._mode, num_bytes)

    async def reports(self) -> AsyncGenerator[LinkReport, None]:
        """Yield a report at once, at each change, and every WATCHED_S."""
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
        """Probe the server, until cancelled, while no answer uses the link."""
        while True:
            # Private answers do not count: a pause in the probes would show the server how long one takes.
            if self._pool.num_using_link == 0:
                await self._probe_server()
            is_watched = self._num_watchers or self.state not in _REACHABLE
            await asyncio.sleep(WATCHED_S if is_watched else _IDLE_S)

    async def _probe_server(self) -> None:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                self._rtt_s = await self._probe.measure()
        except (OutriderError, TimeoutError):
            state = LinkState.OFFLINE
        else:
            state = LinkState.ONLINE
        if self._pool.num_using_link == 0:  # else an answer began meanwhile, which knows the state better
            self._set_state(state)

    def _set_state(self, state: LinkState) -> None:
        if state is not self.state:
            self.state = state
            self._offline_since = time.monotonic() if state is LinkState.OFFLINE else None
            self._on_change(state)
            self.notify()
