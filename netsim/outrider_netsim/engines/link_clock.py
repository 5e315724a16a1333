"""The link's own time: the seconds for which it was up. It stands still while the link is cut."""

from __future__ import annotations

import asyncio

# asyncio's timers fire 0 to 1 ms late (epoll counts milliseconds). Aiming this much earlier centers the error on 0.
HALF_TICK_S = 0.0005


class LinkClock:
    """A pausable clock on the running event loop's time; 0 on creation."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._paused_s = self._time()
        self._stopped_at: float | None = None
        self._running = asyncio.Event()
        self._running.set()

    @property
    def running(self) -> bool:
        return self._stopped_at is None

    def now(self) -> float:
        real = self._time() if self._stopped_at is None else self._stopped_at
        return real - self._paused_s

    def stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = self._time()
            self._running.clear()

    def resume(self) -> None:
        if self._stopped_at is not None:
            self._paused_s += self._time() - self._stopped_at
            self._stopped_at = None
            self._running.set()

    async def sleep_until(self, when: float) -> None:
        """Return once the clock runs and shows `when`, within half a tick."""
        # A loop, because the clock may be stopped and resumed during the sleep.
        while not self.running or self.now() < when - HALF_TICK_S:
            await self._running.wait()
            await asyncio.sleep(max(0.0, when - HALF_TICK_S - self.now()))
