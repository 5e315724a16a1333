"""What another thread leaves for an event loop: one wake-up for all that lies there. A pass over many sessions has a
verdict and features for each of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class CallbackQueue:
    """What is put in by any thread is called on the loop, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def put(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._run_all)

    def _run_all(self) -> None:
        self._is_scheduled = False  # first: what is put in from now on rings again
        try:
            while self._callbacks:
                self._callbacks.popleft()()
        except BaseException:
            self._loop.call_soon(self._run_all)  # the others are not to wait for the next ring
            raise
