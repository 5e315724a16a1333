"""Replies to requests, and their way from the engine thread to the event loop, in the order in which they were posted.

Posting and waking are two steps. A wake-up writes to a socket, which hands over the interpreter lock: so one wake-up
serves all that a pass posts, and where the next pass can begin at once, another thread writes it while the pass runs.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from outrider_proto.errors import Refusal
from outrider_proto.frames import Features, Verdict
from outrider_server.scheduling.feature_feed import FeatureFeed


@dataclass(frozen=True, slots=True)
class RequestDone:
    """The last reply of a request."""


@dataclass(frozen=True, slots=True)
class RowsAgain:
    """The request asked for so many feature rows that its session was sent before."""

    num_rows: int


Reply = Verdict | Features | Refusal | RowsAgain | RequestDone


@dataclass(frozen=True, slots=True)
class ReplyRoute:
    """The client's end of a request, as its stream knows it; the engine thread calls both functions."""

    post: Callable[[Reply], None]
    is_behind: Callable[[], bool] = lambda: False  # the client must read first, or its payer is over its rate
    feed: FeatureFeed | None = None  # of the stream, for feature rows
    padded_width: int = 0  # of feature rows, where a larger target is emulated
    max_context: int = sys.maxsize  # tokens at which its texts end, where the target's are not fewer


class ReplyPoster:
    """Runs on the event loop, in order, the callbacks that the engine thread posts."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callbacks: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._waker = ThreadPoolExecutor(1, "outrider-replies")

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run callbacks on this loop. Until then they wait."""
        self._loop = loop

    def post(self, callback: Callable[[], None]) -> None:
        """Have it run once the event loop is awake: call wake() or waking_alongside() afterwards."""
        self._callbacks.append(callback)

    def wake(self) -> None:
        """Wake the event loop if anything waits for it. From any thread."""
        if self._callbacks and not self._is_scheduled and self._loop is not None:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._run_all)

    @contextmanager
    def waking_alongside(self) -> Iterator[None]:
        """Have another thread wake the event loop, while this one runs a pass; it has done so when the pass ends."""
        waking = self._waker.submit(self.wake) if self._callbacks else None
        try:
            yield
        finally:
            # Otherwise short passes, one after another, would keep the interpreter lock from the other thread.
            if waking is not None:
                waking.result()

    def stop(self) -> None:
        """Wake the event loop for the last time. Safe to call twice."""
        self.wake()
        self._waker.shutdown()

    def _run_all(self) -> None:
        # Reset first: a callback that is posted while these run must be able to schedule the next run.
        self._is_scheduled = False
        try:
            while self._callbacks:
                self._callbacks.popleft()()
        except BaseException:
            # A callback that raises must not hold up those behind it until the next wake-up.
            assert self._loop is not None
            self._loop.call_soon(self._run_all)
            raise
