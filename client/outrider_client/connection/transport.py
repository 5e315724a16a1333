"""A Transport makes Connections, which carry frames. Nothing above this module knows more about networks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Generic, Protocol, TypeVar

from outrider_proto.errors import LinkError
from outrider_proto.frames import ClientFrame, ServerDescription, ServerFrame

T = TypeVar("T")


class Connection(Protocol):
    """A stream of frames in each direction."""

    @property
    def bytes_up(self) -> int:
        """Payload bytes sent so far; 0 if nothing is serialized."""

    @property
    def bytes_down(self) -> int: ...

    def send(self, frame: ClientFrame) -> None:
        """Queue a frame without waiting. A broken link shows up in `receive`."""

    async def receive(self) -> ServerFrame:
        """Return the next frame. Raises Refusal, or LinkError once the stream has ended."""

    async def close(self) -> None:
        """Safe to call twice."""


class Transport(Protocol):
    """Opens connections to one server."""

    @property
    def address(self) -> str:
        """HOST:PORT, for messages."""

    async def connect(self) -> Connection:
        """Open a connection that shares nothing with earlier ones. Raises LinkError; the caller sets the deadline."""

    async def describe(self) -> ServerDescription:
        """Ask the server what it hosts. Raises LinkError or Refusal; the caller sets the deadline."""

    async def close(self) -> None:
        """Safe to call twice."""


class SendQueue(Generic[T]):
    """What is waiting to be sent: filled without waiting, read as an asynchronous iterator. One reader only."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[T | None] = asyncio.Queue()

    def put(self, item: T) -> None:
        # Queued, never awaited: cancelling a pending gRPC write kills the whole stream.
        self._queue.put_nowait(item)

    def close(self) -> None:
        """End the reader's iterator after the items queued so far."""
        self._queue.put_nowait(None)

    async def items(self) -> AsyncIterator[T]:
        while (item := await self._queue.get()) is not None:
            yield item


SessionFunction = Callable[[AsyncIterator[ClientFrame]], AsyncGenerator[ServerFrame, None]]


class LocalConnection:
    """One call of a session function in this process; nothing is serialized."""

    bytes_up = 0
    bytes_down = 0

    def __init__(self, session: SessionFunction) -> None:
        self._outbox = SendQueue[ClientFrame]()
        self._frames = session(self._outbox.items())

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
    """Transport within one process, to a verifier given as its two functions: for tests and embedding."""

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
