"""asyncio on virtual time: an event loop that jumps instead of waiting.

A loop waits in its selector, for as long as its next timer allows. Here that wait is looked at instead:

    something is ready (a thread has called back, a socket)   hand it over, as ever
    work is under way elsewhere (clock.busy(), executors)     really wait for it; the clock stands still
    a timer, or an event of the clock                         jump to the earlier one
    none of these                                             nothing will ever happen: StandstillError
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import TypeVar, TypeVarTuple

from outrider_netsim.virtual.clock import StandstillError, VirtualClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class JumpingSelector(selectors.DefaultSelector):
    """Moves `clock` where another selector would wait."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.has_news = False  # the loop has been given something to do, or another timer
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._clock.is_busy:
            return super().select(None)
        if timeout is not None or self._clock.next_event() is not None:
            self._jump(float("inf") if timeout is None else self._clock.now + timeout)
            return []
        if self._has_sockets:
            return super().select(None)
        raise StandstillError(
            f"virtual time stands still at {self._clock.now:g} s: every task waits for what no timer, packet or "
            "executor will bring; put work that is done elsewhere into clock.busy()"
        )

    def _jump(self, timer: float) -> None:
        """Let the clock's events happen until the loop has something to do, at its timer at the latest."""
        clock = self._clock
        self.has_news = False
        while (when := clock.next_event()) is not None and when <= timer:
            clock.step()
            if self.has_news or clock.is_busy:
                return
        if timer < float("inf"):
            clock.run_until(timer)

    @property
    def _has_sockets(self) -> bool:
        return len(self.get_map()) > 1  # the loop has one of its own, by which threads wake it


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is `clock`'s."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._jumping = JumpingSelector(clock)
        super().__init__(self._jumping)
        clock.wake_with(self._look_again)

    def time(self) -> float:
        return self.clock.now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._jumping.has_news = True
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._jumping.has_news = True
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._jumping.has_news = True
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self.clock.begin_work()
        future.add_done_callback(lambda _: self.clock.end_work())
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # asyncio's own
        with self.clock.busy():  # it waits for a thread of its own
            await super().shutdown_default_executor()

    def close(self) -> None:
        self.clock.wake_with(None)
        super().close()

    def _look_again(self) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self.call_soon_threadsafe(lambda: None)


def run_on(clock: VirtualClock, program: Coroutine[object, object, T]) -> T:
    """Run `program` on a loop of its own over `clock`."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(program)
