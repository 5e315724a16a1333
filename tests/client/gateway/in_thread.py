"""Run an asynchronous context manager for tests that have no event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


class InThread:
    """An asynchronous context manager, entered and left in an event loop of its own."""

    def __init__(self, make: Callable[[], contextlib.AbstractAsyncContextManager]) -> None:
        self._make = make
        self._entered = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.value = None
        self._failure: BaseException | None = None

    def __enter__(self):
        self._thread.start()
        self._entered.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self.value

    def __exit__(self, *error) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._make() as self.value:
                self._entered.set()
                await self._leave.wait()
        except BaseException as failure:
            self._failure = failure
            self._entered.set()
