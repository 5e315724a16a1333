"""Frames that wait to be sent: filled without waiting, read as an asynchronous iterator until closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from outrider_proto.frames import ClientFrame


class Outbox:
    """One writer, one reader."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[ClientFrame | None] = asyncio.Queue()

    def put(self, frame: ClientFrame) -> None:
        self._queue.put_nowait(frame)

    def close(self) -> None:
        """The reader's iterator ends after what was put before."""
        self._queue.put_nowait(None)

    async def frames(self) -> AsyncIterator[ClientFrame]:
        while (frame := await self._queue.get()) is not None:
            yield frame
