"""What another thread leaves for an event loop: one wake-up for all that lies there. A pass over many sessions has a
verdict and features for each of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Mailbox:
    """What is put in by any thread is called on the loop, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[Callable[[], None]] = deque()
        self._has_rung = False

    def put(self, letter: Callable[[], None]) -> None:
        self._letters.append(letter)
        if not self._has_rung:
            self._has_rung = True
            self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._has_rung = False  # first: what is put in from now on rings again
        try:
            while self._letters:
                self._letters.popleft()()
        except BaseException:
            self._loop.call_soon(self._empty)  # the others are not to wait for the next ring
            raise
