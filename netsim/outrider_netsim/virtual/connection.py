"""A connection in virtual time between two asyncio programs of one process: messages with declared sizes.

The receiver gets the very object that was sent; only its declared size is put on the link.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from outrider_netsim.virtual.flow import Flow


class NewFlow(Protocol):
    """Creates the flows of a connection, one each way."""

    def __call__(self, way: Literal["up", "down"], broken: Callable[[], None]) -> Flow: ...


@dataclass(frozen=True, slots=True)
class _Message:
    payload: Any  # opaque


class MessageConnection:
    """One end of a connection. Messages arrive whole, in order and at the link's times."""

    def __init__(self) -> None:
        self._inbox: asyncio.Queue[_Message | Exception] = asyncio.Queue()
        self._flow: Flow | None = None
        self._peer: MessageConnection | None = None
        self._closed = False

    def attach(self, flow: Flow, peer: MessageConnection) -> None:
        """Send messages to `peer` over `flow`."""
        self._flow, self._peer = flow, peer

    def send(self, payload: Any, size_bytes: int) -> None:  # any object
        """Send a message of that size now. Raises BrokenPipeError after `close`, TimeoutError on a dead link."""
        if self._closed:
            raise BrokenPipeError("this end was closed: connect again")
        self._carry(_Message(payload), size_bytes)

    async def receive(self) -> Any:  # what the other end sent
        """Return the next message. Raises EOFError after the last one, TimeoutError on a dead link."""
        item = await self._inbox.get()
        if isinstance(item, Exception):
            # For the next call too.
            self.put(item)
            raise item
        return item.payload

    def close(self) -> None:
        """Send nothing more; the other end reads EOF after the last message. Receiving goes on. Safe to call twice."""
        if not self._closed:
            self._closed = True
            # On a dead link the other end knows already.
            with contextlib.suppress(TimeoutError):
                self._carry(EOFError("the other end closed the connection"), 0)

    def put(self, item: _Message | Exception) -> None:
        """Deliver an arrived message."""
        self._inbox.put_nowait(item)

    def _carry(self, item: _Message | Exception, size_bytes: int) -> None:
        assert self._flow is not None
        assert self._peer is not None
        peer = self._peer
        self._flow.send(size_bytes, lambda: peer.put(item))


async def open_connection(new_flow: NewFlow, accept: Callable[[MessageConnection], None]) -> MessageConnection:
    """Open a connection in one round trip and return the client's end; `accept` gets the server's end halfway."""
    client, server = MessageConnection(), MessageConnection()
    opened = asyncio.get_running_loop().create_future()

    def broken() -> None:
        error = TimeoutError("no answer over the link for too long: restore it and connect again")
        client.put(error)
        server.put(error)
        if not opened.done():
            opened.set_exception(error)

    def at_server() -> None:
        accept(server)
        down.send(0, at_client)

    def at_client() -> None:
        if not opened.done():
            opened.set_result(None)

    up, down = new_flow("up", broken), new_flow("down", broken)
    client.attach(up, server)
    server.attach(down, client)
    up.send(0, at_server)
    await opened
    return client
