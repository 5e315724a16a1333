"""Callbacks from other threads to an event loop, with one wake-up for all that are waiting.

A pass over many sessions has a verdict and features for each of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class CallbackQueue:
    """Calls on the event loop, in order, what any thread puts in."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._is_held = False

    def put(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        self._schedule()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wake the event loop only at the end, for all that is put in meanwhile. For one thread at a time."""
        # A wake-up writes to a socket, which hands over the interpreter lock: the loop would take the first callback
        # alone, while the thread that brings the others waits.
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            if self._callbacks:
                self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_held:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._run_all)

    def _run_all(self) -> None:
        # Reset first: a callback put in while the queue runs must schedule the next run, or it would wait forever.
        self._is_scheduled = False
        try:
            while self._callbacks:
                self._callbacks.popleft()()
        except BaseException:
            # A callback that raises must not hold up those behind it until the next put().
            self._loop.call_soon(self._run_all)
            raise
