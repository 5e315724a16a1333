"""A transport within one process: frames go to a session function as they are. For traces, tests and embedding."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable

from outrider_client.connection.outbox import Outbox
from outrider_proto.errors import LinkError
from outrider_proto.frames import ClientFrame, ServerDescription, ServerFrame

SessionFunction = Callable[[AsyncIterator[ClientFrame]], AsyncGenerator[ServerFrame, None]]


class LocalConnection:
    """One call of the session function."""

    bytes_up = 0
    bytes_down = 0

    def __init__(self, session: SessionFunction) -> None:
        self._outbox = Outbox()
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
