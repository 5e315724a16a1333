"""Virtual time: a clock that stands still while anything happens, and then jumps to what happens next. No sleeping.

Callbacks are called in the order of their times, those of one time in the order they were planned in, so that a run
depends on nothing but its inputs. The clock knows nothing of links; loop.py puts asyncio on it.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import TypeVar

T = TypeVar("T")


class StandstillError(RuntimeError):
    """Somebody waits, and neither a timer nor a packet nor work elsewhere will ever wake them."""


class VirtualClock:
    """Seconds from 0 on, and what is to happen when."""

    def __init__(self) -> None:
        self.now = 0.0  # only the clock itself sets it
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        self._busy = 0
        self._lock = threading.Lock()
        self._wake: Callable[[], object] | None = None

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back at `when`, or next if that is past."""
        self._planned += 1
        heapq.heappush(self._events, (when if when > self.now else self.now, self._planned, callback))

    def next_event(self) -> float | None:
        """When something happens next; None if nothing is planned."""
        return self._events[0][0] if self._events else None

    def step(self) -> None:
        """Jump to what happens next, and let it. Raises StandstillError if there is nothing."""
        if not self._events:
            raise StandstillError(f"at {self.now:g} s nothing is planned: send something, or plan it with call_at")
        self.now, _, callback = heapq.heappop(self._events)
        callback()

    def run_until(self, when: float) -> None:
        """Let happen what is due by `when`, which is then the time."""
        while self._events and self._events[0][0] <= when:
            self.step()
        self.now = max(self.now, when)

    def run(self, program: Coroutine[object, object, T]) -> T:
        """Run an asyncio program on this clock: `asyncio.sleep(3600)` takes no time. Like `asyncio.run` in all else.

        Time jumps when every task waits. While work that somebody awaits is under way in an executor
        (`asyncio.to_thread`, `run_in_executor`) or inside `busy()`, the program waits in real time and the clock stands
        still. Other threads and real sockets are not seen: wait for them inside `busy()`. Raises StandstillError when
        everything waits for ever.
        """
        from outrider_netsim.virtual.loop import run_on

        return run_on(self, program)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While any of these is open, in whatever thread, the clock does not jump: something real is being done."""
        self.begin_work()
        try:
            yield
        finally:
            self.end_work()

    def begin_work(self) -> None:
        """As `busy()`, where its two ends are apart."""
        with self._lock:
            self._busy += 1

    def end_work(self) -> None:
        with self._lock:
            self._busy -= 1
            wake = self._wake
        if wake is not None:
            wake()

    @property
    def is_busy(self) -> bool:
        return self._busy > 0

    def wake_with(self, wake: Callable[[], object] | None) -> None:
        """`wake` is called, from any thread, when work ends; a loop that waits in real time looks again then."""
        with self._lock:
            self._wake = wake
