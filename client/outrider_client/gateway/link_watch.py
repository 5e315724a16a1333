"""Watches the state of the link: from the answers in progress, and by probing the server while there are none."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

from outrider_client.async_client import AsyncClient
from outrider_client.connection.grpc_transport import GrpcProbe
from outrider_client.connection.link_state import LinkState
from outrider_client.core.events import Event, LinkChanged, Stats
from outrider_client.core.statistics import Statistics
from outrider_client.gateway.session_pool import SessionPool
from outrider_client.privacy.safe_prefix import HUNG_UP
from outrider_proto.errors import OutriderError

WATCHED_S = 1.0  # between probes while a page watches
_AWAY_S = 30.0  # at most, between probes of a server that is away while nobody watches
_PROBE_TIMEOUT_S = 2.0
_REACHABLE = (LinkState.ONLINE, LinkState.RESUMING)


class LinkWatch:
    """Calls `on_change` with each new state of the link."""

    def __init__(self, pool: SessionPool, probe: GrpcProbe, on_change: Callable[[LinkState], None]) -> None:
        self.state = LinkState.CONNECTING
        self._pool = pool
        self._probe = probe
        self._on_change = on_change
        self._offline_since: float | None = None
        self.rtt_s: float | None = None
        self._statistics = Statistics()
        self._mode: str | None = None
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._num_watchers = 0
        self._num_failures = 0  # probes in a row

    def observe(self, client: AsyncClient, event: Event) -> None:
        match event:
            case LinkChanged(detail=detail) if detail == HUNG_UP:
                pass  # closed on purpose for a private answer: nothing is wrong with the link
            case LinkChanged(state=state) if state not in (LinkState.CONNECTING, LinkState.CLOSED):
                self._set_state(state)
            case Stats(statistics=statistics):
                self._statistics, self._mode = statistics, client.active_mode
                self.rtt_s = client.rtt_s
                if client.link_state is LinkState.ONLINE:
                    self._set_state(LinkState.ONLINE)

    @property
    def offline_s(self) -> float | None:
        """Seconds that the link has been down; None if it is not."""
        return None if self._offline_since is None else time.monotonic() - self._offline_since

    def wake(self) -> None:
        """Have the server probed soon: somebody looks."""
        self._wanted.set()

    def notify(self) -> None:
        """Wake all that wait in `reports`."""
        # A new event for the next change: clearing this one could beat a waiter to its wake-up.
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def report(self) -> dict[str, object]:
        """The link's state, and statistics and mode of the answer in progress, or else of the last one, as JSON."""
        num_bytes = [client.num_bytes for client in self._pool.clients]
        return {
            "state": self.state.value,
            "rtt_ms": None if self.rtt_s is None else round(self.rtt_s * 1e3, 2),
            "tau": round(self._statistics.mean_acceptance_length, 3),
            "tokens_per_second": round(self._statistics.tokens_per_second, 2),
            "bytes_up": sum(up for up, _ in num_bytes),
            "bytes_down": sum(down for _, down in num_bytes),
            "mode": self._mode,
        }

    async def reports(self) -> AsyncGenerator[dict[str, object], None]:
        """Yield a report at once, at each change, and every WATCHED_S."""
        self._num_watchers += 1
        self.wake()
        try:
            while True:
                yield self.report
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WATCHED_S):
                        await self._changed.wait()
        finally:
            self._num_watchers -= 1

    async def run(self) -> None:
        """Probe the server, until cancelled, while no answer uses the link: ever less often where nobody watches."""
        try:
            while True:
                self._wanted.clear()
                # Private answers do not count: a pause in the probes would show the server how long one takes.
                if self._pool.num_using_link == 0:
                    await self._probe_server()
                await asyncio.sleep(WATCHED_S)
                if not self._num_watchers:
                    await self._rest()
        finally:
            await self._probe.close()

    async def _rest(self) -> None:
        """Wait until somebody looks, or a server that is away is due again."""
        # Closed: the server would ping an idle connection to learn whether the device is still there.
        await self._probe.close()
        away_s = min(WATCHED_S * 2.0 ** min(self._num_failures, 16), _AWAY_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self.state in _REACHABLE else away_s):
                await self._wanted.wait()

    async def _probe_server(self) -> None:
        started = time.monotonic()
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                self.rtt_s = await self._probe.measure()
        except (OutriderError, TimeoutError):
            if time.monotonic() - started > _PROBE_TIMEOUT_S + 0.1:
                return  # this process did not run: that says nothing of the link
            state = LinkState.OFFLINE
            self._num_failures += 1
            await self._probe.close()  # a TCP connection that was cut off recovers later than a new one connects
        else:
            state = LinkState.ONLINE
            self._num_failures = 0
        if self._pool.num_using_link == 0:  # else an answer began meanwhile, which knows the state better
            self._set_state(state)

    def _set_state(self, state: LinkState) -> None:
        if state is not self.state:
            self.state = state
            self._offline_since = time.monotonic() if state is LinkState.OFFLINE else None
            if state is LinkState.OFFLINE:
                self.wake()  # an answer may have lost the link: from here on the probes look for it
            self._on_change(state)
            self.notify()
