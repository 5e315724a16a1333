"""A connection in virtual time between two asyncio programs of one process: messages with declared sizes.

The receiver gets the very object that was sent; only its declared size is put on the link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from outrider_netsim.tcp.endpoint import TcpEndpoint, TcpUser

NewEndpoints = Callable[[TcpUser, TcpUser], tuple[TcpEndpoint, TcpEndpoint]]


class MessageConnection(TcpUser):
    """One end of a connection. Messages arrive whole, in order and at the link's times."""

    def __init__(self, on_open: Callable[[], None], on_failure: Callable[[OSError], None]) -> None:
        self._written = 0
        self._received = 0
        self._expected: deque[tuple[int, Any]] = deque()  # messages, opaque, with the byte after the last one
        self._inbox: asyncio.Queue[tuple[Any] | Exception] = asyncio.Queue()  # a message alone in a tuple
        self._on_open = on_open
        self._on_failure = on_failure
        self._end: TcpEndpoint | None = None
        self._peer: MessageConnection | None = None
        self._error: OSError | None = None
        self._closed = False

    def attach(self, end: TcpEndpoint, peer: MessageConnection) -> None:
        """Send messages to `peer` through `end`."""
        self._end, self._peer = end, peer

    def send(self, payload: Any, size_bytes: int) -> None:  # any object
        """Send a message of that size now. Raises BrokenPipeError after `close`, TimeoutError on a dead link."""
        if self._closed:
            raise BrokenPipeError("this end was closed: connect again")
        if self._error is not None:
            raise self._error
        assert self._end is not None
        assert self._peer is not None
        # An empty message counts as a byte.
        self._peer._expect(max(1, size_bytes), payload)
        self._end.write(max(1, size_bytes))

    async def receive(self) -> Any:  # what the other end sent
        """Return the next message. Raises EOFError after the last one, TimeoutError on a dead link."""
        item = await self._inbox.get()
        if isinstance(item, Exception):
            # For the next call too.
            self._inbox.put_nowait(item)
            raise item
        return item[0]

    def close(self) -> None:
        """Send nothing more; the other end reads EOF after the last message. Receiving goes on. Safe to call twice."""
        if not self._closed:
            self._closed = True
            assert self._end is not None
            self._end.finish()

    def _expect(self, size_bytes: int, message: Any) -> None:  # any object
        """Deliver `message` when that many more bytes have arrived."""
        self._written += size_bytes
        self._expected.append((self._written, message))

    def received(self, size_bytes: int) -> None:
        self._received += size_bytes
        while self._expected and self._expected[0][0] <= self._received:
            self._inbox.put_nowait((self._expected.popleft()[1],))

    def opened(self) -> None:
        self._on_open()

    def ended(self) -> None:
        self._inbox.put_nowait(EOFError("the other end closed the connection"))

    def failed(self, error: OSError) -> None:
        """Tell both programs: the other one may be waiting for what will never come."""
        for end in (self, self._peer):
            if end is not None and end._error is None:
                end._error = error
                end._inbox.put_nowait(error)
                end._on_failure(error)


async def open_connection(
    new_endpoints: NewEndpoints, accept: Callable[[MessageConnection], None]
) -> MessageConnection:
    """Open a connection in one round trip and return the client's end; `accept` gets the server's end after it.

    Raises TimeoutError when the link does not answer.
    """
    opened = asyncio.get_running_loop().create_future()

    def at_client() -> None:
        if not opened.done():
            opened.set_result(None)

    def failed(error: OSError) -> None:
        if not opened.done():
            opened.set_exception(error)

    client = MessageConnection(at_client, failed)
    server = MessageConnection(lambda: accept(server), lambda error: None)
    here, there = new_endpoints(client, server)
    client.attach(here, server)
    server.attach(there, client)
    here.open()
    await opened
    return client
