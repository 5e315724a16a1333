"""Virtual time: a clock that jumps from event to event, and an asyncio event loop on it. Nothing sleeps.

Callbacks run in the order of their times, and those of one time in the order they were scheduled in, so that a run
depends on nothing but its inputs. An event loop waits in its selector until its next timer; here that wait is replaced:

    something is ready (a thread has called back, a socket)   handle it, as always
    work is under way elsewhere (clock.busy(), executors)     really wait for it; the clock stands still
    a timer, or an event of the clock                         jump to the earlier one
    none of these                                             nothing will ever happen: StandstillError

The clock knows nothing of links.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextvars import Context
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StandstillError(RuntimeError):
    """A program waits, and no timer, packet or work elsewhere will ever wake it."""


class VirtualClock:
    """Seconds from 0 on, and the events scheduled for them."""

    def __init__(self) -> None:
        self.now = 0.0  # set by the clock alone
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        self._busy = 0
        self._lock = threading.Lock()
        self.wake: Callable[[], object] | None = None  # called, from any thread, when work ends: a loop looks again

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Schedule `callback` for `when`, or for now if that is past."""
        # The counter keeps events of one time in order, and the heap from comparing callbacks.
        self._planned += 1
        heapq.heappush(self._events, (when if when > self.now else self.now, self._planned, callback))

    def next_event(self) -> float | None:
        """Return the time of the next event; None if nothing is scheduled."""
        return self._events[0][0] if self._events else None

    def step(self) -> None:
        """Jump to the next event and run it. Raises StandstillError if there is none."""
        if not self._events:
            raise StandstillError(f"at {self.now:g} s nothing is scheduled: send something, or use call_at")
        self.now, _, callback = heapq.heappop(self._events)
        callback()

    def run_until(self, when: float) -> None:
        """Run every event due by `when`, then set the time to `when`."""
        while self._events and self._events[0][0] <= when:
            self.step()
        self.now = max(self.now, when)

    def run(self, program: Coroutine[object, object, T]) -> T:
        """Run an asyncio program on this clock, like `asyncio.run`: `asyncio.sleep(3600)` takes no time.

        Time jumps when every task waits. While work is under way in an executor (`asyncio.to_thread`,
        `run_in_executor`) or inside `busy()`, the program waits in real time and the clock stands still. Other threads
        and real sockets are not noticed: wait for them inside `busy()`. Raises StandstillError when everything waits
        forever.
        """
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(self)) as runner:
            return runner.run(program)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the clock from jumping while real work is done, in any thread."""
        self.begin_work()
        try:
            yield
        finally:
            self.end_work()

    def begin_work(self) -> None:
        """Begin what `busy()` does, for callers that end it elsewhere."""
        with self._lock:
            self._busy += 1

    def end_work(self) -> None:
        with self._lock:
            self._busy -= 1
        # Called without the lock: it enters the event loop, which may take the lock again.
        if (wake := self.wake) is not None:
            wake()

    @property
    def is_busy(self) -> bool:
        return self._busy > 0


class JumpingSelector(selectors.DefaultSelector):
    """Advance `clock` where another selector would wait."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.has_news = False  # the loop has a new callback or timer
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Always first: a jump must never overtake a callback from a thread or data on a socket.
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
            f"virtual time stands still at {self._clock.now:g} s: every task waits, and no timer, packet or "
            "executor will wake one; put work that is done elsewhere into clock.busy()"
        )

    def _jump(self, timer: float) -> None:
        """Run the clock's events until the loop has something to do, at the latest until its timer."""
        clock = self._clock
        self.has_news = False
        while (when := clock.next_event()) is not None and when <= timer:
            clock.step()
            # The loop runs first: what it does now may come before the next event.
            if self.has_news or clock.is_busy:
                return
        if timer < float("inf"):
            clock.run_until(timer)

    @property
    def _has_sockets(self) -> bool:
        # One is the loop's own, through which threads wake it.
        return len(self.get_map()) > 1


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on the time of `clock`."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._jumping = JumpingSelector(clock)
        super().__init__(self._jumping)
        clock.wake = self._look_again

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
        # Only now: an executor that refuses the work would leave the clock busy forever.
        self.clock.begin_work()
        future.add_done_callback(lambda _: self.clock.end_work())
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # asyncio's own
        # It waits for a thread, unseen by the selector.
        with self.clock.busy():
            await super().shutdown_default_executor()

    def close(self) -> None:
        self.clock.wake = None
        super().close()

    def _look_again(self) -> None:
        # The loop was closed meanwhile.
        with contextlib.suppress(RuntimeError):
            self.call_soon_threadsafe(lambda: None)
