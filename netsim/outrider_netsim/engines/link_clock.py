"""A clock of events that keeps up with the event loop's time, so that what is modeled happens in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from outrider_netsim.core.errors import EngineError
from outrider_netsim.virtual.clock import VirtualClock

# asyncio's timers fire 0 to 1 ms late (epoll counts milliseconds). Running this much ahead centers the error on 0.
HALF_TICK_S = 0.0005


class LinkClock(VirtualClock):
    """0 on `start`. Events run at their own times, however late the loop wakes, so delays do not add up."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started_at = 0.0
        self._wake_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None
        self._failed = asyncio.Event()

    def start(self) -> None:
        """Begin with the running event loop's time."""
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()

    def stop(self) -> None:
        """Run no event any more."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def present(self) -> Iterator[None]:
        """Do something now: after everything that was due, before what follows from it."""
        self._catch_up()
        try:
            yield
        finally:
            self._plan()

    def _catch_up(self) -> None:
        if self._loop is not None:
            self.run_until(self._loop.time() - self._started_at + HALF_TICK_S)

    def _plan(self) -> None:
        due = self.next_event()
        if due is None or self._loop is None or due >= self._wake_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = due
        self._timer = self._loop.call_at(self._started_at + due - HALF_TICK_S, self._on_time)

    def _on_time(self) -> None:
        self._wake_at = float("inf")
        self._timer = None
        try:
            with self.present():
                pass
        except Exception as error:  # no later event would run
            self._failure = error
            self._failed.set()

    async def watch(self) -> None:
        """Wait until an event fails, and raise EngineError."""
        await self._failed.wait()
        error = self._failure
        raise EngineError(f"the modeled link has ended ({type(error).__name__}: {error}): start it again") from error
