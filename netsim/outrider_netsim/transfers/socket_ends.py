"""The two ends of a real link as TCP sockets, both of them in this process.

The link may lie between two network namespaces: a socket belongs to the one where it was made, whoever uses it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Protocol

HEADER = struct.Struct("!qq")  # bytes of the request, and of the reply or STREAM
STREAM = -1
READ_BYTES = 1 << 20
WRITE_BYTES = 1 << 18
# A stream's reader leaves data to collect for so long. A wake-up a packet would cost what carrying it costs.
COLLECT_S = 0.001


class LinkSwitch(Protocol):
    """Cuts and restores the link, wherever its engine runs."""

    async def cut(self) -> None: ...
    async def restore(self) -> float:
        """Return when the link was restored, on the monotonic clock."""


class SocketConnection:
    """The client's end of a connection, and a task that replies at the server's end."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.received_bytes = 0
        self._client, self._server = client, server
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # asyncio holds only weak references to tasks.
        self._tasks = [asyncio.create_task(_serve(server))]
        self._buffer = memoryview(bytearray(READ_BYTES))

    async def exchange(self, request_bytes: int, reply_bytes: int) -> None:
        await self._ask(request_bytes, reply_bytes)
        await _receive(self._client, reply_bytes, self._buffer)

    async def stream(self) -> None:
        await self._ask(HEADER.size, STREAM)
        self._tasks.append(asyncio.create_task(self._receive_stream()))

    async def _ask(self, request_bytes: int, reply_bytes: int) -> None:
        request = HEADER.pack(request_bytes, reply_bytes).ljust(request_bytes, b"\0")
        await asyncio.get_running_loop().sock_sendall(self._client, request)

    async def _receive_stream(self) -> None:
        loop = asyncio.get_running_loop()
        while size := await loop.sock_recv_into(self._client, self._buffer):
            self.received_bytes += size
            await asyncio.sleep(COLLECT_S)


class SocketEnds:
    """Opens connections from unconnected `clients`, as many as there are, to `address`; they arrive at `listener`.

    All sockets are non-blocking, and stay the caller's.
    """

    def __init__(
        self, address: tuple[str, int], listener: socket.socket, clients: Sequence[socket.socket], switch: LinkSwitch
    ) -> None:
        self._address = address
        self._listener = listener
        self._clients: Iterator[socket.socket] = iter(clients)
        self._switch = switch

    async def connect(self) -> SocketConnection:
        loop = asyncio.get_running_loop()
        client = next(self._clients)
        await loop.sock_connect(client, self._address)
        server, _ = await loop.sock_accept(self._listener)
        return SocketConnection(client, server)

    async def cut(self) -> None:
        await self._switch.cut()

    async def restore(self) -> float:
        return await self._switch.restore()


async def _serve(server: socket.socket) -> None:
    """Reply to every request; after one for a stream, send until cancelled."""
    loop = asyncio.get_running_loop()
    buffer = memoryview(bytearray(READ_BYTES))
    while True:
        await _receive(server, HEADER.size, buffer)
        request_bytes, reply_bytes = HEADER.unpack(buffer[: HEADER.size])
        await _receive(server, request_bytes - HEADER.size, buffer)
        if reply_bytes == STREAM:
            break
        await loop.sock_sendall(server, bytes(reply_bytes))
    chunk = bytes(WRITE_BYTES)
    while True:
        await loop.sock_sendall(server, chunk)


async def _receive(end: socket.socket, size: int, buffer: memoryview) -> None:
    """Receive exactly `size` bytes; the buffer then begins with the last ones read, all of them if they fit."""
    loop = asyncio.get_running_loop()
    left = size
    while left:
        # Continues where the last piece ended, so that a header in two pieces is whole.
        start = (size - left) % len(buffer)
        got = await loop.sock_recv_into(end, buffer[start : start + left])
        if not got:
            raise ConnectionError("the link closed a connection while it was measured")
        left -= got
