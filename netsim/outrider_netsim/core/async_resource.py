"""`async with` for everything that is started and closed."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Self


class AsyncResource(ABC):
    """Base of classes with `start` and `aclose`: `async with` starts on entering and closes on leaving."""

    @abstractmethod
    async def start(self) -> object: ...

    @abstractmethod
    async def aclose(self) -> None:
        """Safe to call twice."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def close_server(server: asyncio.Server, tasks: Collection[asyncio.Task[None]]) -> None:
    """Stop listening and cancel `tasks`. Who was accepted has met the server's protocol by then, and can be closed."""
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        with contextlib.suppress(NotImplementedError):  # Windows
            loop.remove_reader(listener.fileno())
    # asyncio makes the transport of an accepted connection one iteration later, and its protocol another one. In
    # between close() would lose it: its transport fails an assertion, and the socket stays open until it is garbage
    # (Python 3.11 to 3.13, base_events.Server._attach).
    for _ in range(2):
        await asyncio.sleep(0)
    server.close()
    await cancel_all(tasks)


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their ends, whatever these are."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
