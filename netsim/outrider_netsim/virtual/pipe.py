"""A connection in virtual time between two asyncio programs in one process: messages with declared sizes.

What is sent is handed over as it is, whatever it is; only its declared size travels.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from outrider_netsim.virtual.flow import Flow


class NewFlow(Protocol):
    """What makes the flows of a connection, one each way."""

    def __call__(self, way: Literal["up", "down"], broken: Callable[[], None]) -> Flow: ...


@dataclass(frozen=True, slots=True)
class _Message:
    payload: Any  # the programs' own business


class Pipe:
    """One end of a connection. Messages arrive whole, in order and at the link's times."""

    def __init__(self) -> None:
        self._inbox: asyncio.Queue[_Message | Exception] = asyncio.Queue()
        self._flow: Flow | None = None
        self._peer: Pipe | None = None
        self._closed = False

    def attach(self, flow: Flow, peer: Pipe) -> None:
        """`flow` carries what is sent to `peer`."""
        self._flow, self._peer = flow, peer

    def send(self, payload: Any, size_bytes: int) -> None:  # any object
        """Send it now, as a message of that size. Raises BrokenPipeError after `close`, TimeoutError on a dead link."""
        if self._closed:
            raise BrokenPipeError("this end was closed: connect anew")
        self._carry(_Message(payload), size_bytes)

    async def receive(self) -> Any:  # what the other end sent
        """The next message. Raises EOFError after the last one, TimeoutError when the link was dead for too long."""
        item = await self._inbox.get()
        if isinstance(item, Exception):
            self.put(item)  # the next call says it too
            raise item
        return item.payload

    def close(self) -> None:
        """No more is sent; the other end learns it after all that was. Safe to call twice; receiving goes on."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(TimeoutError):  # a dead link has told the other end already
                self._carry(EOFError("the other end closed the connection"), 0)

    def put(self, item: _Message | Exception) -> None:
        """It has arrived."""
        self._inbox.put_nowait(item)

    def _carry(self, item: _Message | Exception, size_bytes: int) -> None:
        assert self._flow is not None
        assert self._peer is not None
        peer = self._peer
        self._flow.send(size_bytes, lambda: peer.put(item))


async def open_pipe(new_flow: NewFlow, accept: Callable[[Pipe], None]) -> Pipe:
    """Shake hands: an empty packet up, where `accept` gets the server's end, and one down; then the client's end."""
    client, server = Pipe(), Pipe()
    opened = asyncio.get_running_loop().create_future()

    def broken() -> None:
        error = TimeoutError("no answer over the link for too long: restore it, connect anew")
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
