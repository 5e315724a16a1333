"""A Transport makes Connections, which carry frames. Nothing above this module knows more about networks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

from outrider_proto.errors import LinkError
from outrider_proto.frames import ClientFrame, ServerDescription, ServerFrame


class Connection(Protocol):
    """One stream of frames each way."""

    @property
    def bytes_up(self) -> int:
        """Payload bytes sent so far; 0 where nothing is serialised."""

    @property
    def bytes_down(self) -> int: ...

    def send(self, frame: ClientFrame) -> None:
        """Queue a frame; never waits. A broken link shows in `receive`."""

    async def receive(self) -> ServerFrame:
        """The next frame. Raises Refusal, or LinkError once the stream has ended."""

    async def close(self) -> None:
        """Safe to call twice."""


class Transport(Protocol):
    """Makes connections to one server."""

    @property
    def address(self) -> str:
        """For messages."""

    async def connect(self) -> Connection:
        """A fresh connection that shares nothing with earlier ones. Raises LinkError; the caller sets the deadline."""

    async def describe(self) -> ServerDescription:
        """What the server hosts. Raises LinkError or Refusal; the caller sets the deadline."""

    async def close(self) -> None:
        """Safe to call twice."""


class SendQueue:
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


SessionFunction = Callable[[AsyncIterator[ClientFrame]], AsyncGenerator[ServerFrame, None]]


class LocalConnection:
    """One call of the session function."""

    bytes_up = 0
    bytes_down = 0

    def __init__(self, session: SessionFunction) -> None:
        self._outbox = SendQueue()
        self._frames = session(self._outbox.frames())

    def send(self, frame: ClientFrame) -> None:
        self._outbox.put(frame)

    async def receive(self) -> ServerFrame:
        try:
            return await anext(self._frames)
        except StopAsyncIteration:
            raise LinkError("the session has ended") from None

    async def close(self) -> None:
        self._outbox.close()
        await self._frames.aclose()


class LocalTransport:
    """Connections to a verifier in this process, given as its two functions."""

    address = "in process"

    def __init__(self, describe: Callable[[], ServerDescription], session: SessionFunction) -> None:
        self._describe = describe
        self._session = session

    async def connect(self) -> LocalConnection:
        return LocalConnection(self._session)

    async def describe(self) -> ServerDescription:
        return self._describe()

    async def close(self) -> None:
        return
