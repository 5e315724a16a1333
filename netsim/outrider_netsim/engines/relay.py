"""Relay one TCP connection through the link: its bytes, end and resets go the way of a modeled connection.

    client == RelayEnd == TcpEndpoint --- the link --- TcpEndpoint == RelayEnd == server

Each end reads no more than its endpoint would buffer, so a slow link holds the program back.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections import deque
from collections.abc import AsyncIterator

from outrider_netsim.core.addresses import Address
from outrider_netsim.core.answers import AnswerReader
from outrider_netsim.core.small_buffers import connected_socket
from outrider_netsim.engines.link_clock import LinkClock
from outrider_netsim.tcp.endpoint import TcpEndpoint, TcpUser
from outrider_netsim.virtual.link import VirtualLink

READ_BYTES = 1 << 16
CONNECT_TIMEOUT_S = 10.0


class RelayEnd(TcpUser):
    """One end of the modeled connection and the real one that it speaks to, which may come later."""

    def __init__(self, answers: AnswerReader | None = None) -> None:
        self._answers = answers
        self.done = asyncio.Event()  # the last byte was handed over, or there will be none
        self.open = asyncio.Event()
        self.error: OSError | None = None
        self._writer: StreamWriter | None = None
        self._content: deque[bytes] = deque()  # written by the other end, in part not yet received
        self._waiting: list[bytes] = []  # received before there was a real connection
        self._has_ended = False
        self._room = asyncio.Event()
        self._endpoint: TcpEndpoint | None = None
        self._far: RelayEnd | None = None

    def attach(self, endpoint: TcpEndpoint, far: RelayEnd) -> None:
        """Speak through `endpoint` to the other end."""
        self._endpoint, self._far = endpoint, far

    @property
    def is_passed_on(self) -> bool:
        """True when what the other end had sent, to the end of its stream, is in the real connection's socket."""
        if self.error is not None:
            return True
        if self._writer is None or not self._has_ended:
            return False
        return not self._writer.transport.get_write_buffer_size()

    # What the modeled connection tells

    def opened(self) -> None:
        self.open.set()

    def received(self, size_bytes: int) -> None:
        while size_bytes:
            data = self._content.popleft()
            if len(data) > size_bytes:
                self._content.appendleft(data[size_bytes:])
                data = data[:size_bytes]
            size_bytes -= len(data)
            self._hand_over(data)

    def acknowledged(self) -> None:
        self._room.set()

    def ended(self) -> None:
        self._has_ended = True
        if self._writer is not None:
            self._end()

    def failed(self, error: OSError) -> None:
        self.error = error
        if self._writer is not None:
            reset(self._writer)
        self._settle()
        assert self._far is not None
        if isinstance(error, TimeoutError):
            # Nobody will tell the other end: the link has been dead for minutes.
            self._far._settle()

    # The real connection

    async def serve(self, reader: StreamReader, writer: StreamWriter, clock: LinkClock) -> None:
        """Carry a real connection's bytes until it ends."""
        self._writer = writer
        for data in self._waiting:
            self._hand_over(data)
        self._waiting.clear()
        if self._has_ended:
            self._end()
        assert self._endpoint is not None
        while self.error is None:
            try:
                data = await reader.read(READ_BYTES)
            except OSError:
                with clock.present():
                    self.abandon()
                return
            with clock.present():
                self._send(data)
            if not data:
                return
            await self._wait_for_room()

    def abandon(self) -> None:
        """Reset the modeled connection, as a kernel does when the program is gone."""
        assert self._endpoint is not None
        self._endpoint.reset()
        self.error = ConnectionResetError("the program has gone")
        self._settle()

    def _send(self, data: bytes) -> None:
        assert self._endpoint is not None
        assert self._far is not None
        if data:
            if self._answers is not None:
                self._answers.read(data)
            self._far._content.append(data)
            self._endpoint.write(len(data))
        else:
            self._endpoint.finish()

    async def _wait_for_room(self) -> None:
        assert self._endpoint is not None
        while self.error is None and self._endpoint.room_bytes <= 0:
            self._room.clear()
            await self._room.wait()
        # The model has no receive window: a program that does not read holds the sender back here.
        far = self._far._writer if self._far is not None else None
        if far is not None:
            with contextlib.suppress(OSError):
                await far.drain()

    def _hand_over(self, data: bytes) -> None:
        if self._writer is None:
            self._waiting.append(data)
        elif self._writer.is_closing():
            self.abandon()
        else:
            self._writer.write(data)

    def _end(self) -> None:
        assert self._writer is not None
        if not self._writer.is_closing():
            with contextlib.suppress(OSError):
                self._writer.write_eof()
        self.done.set()

    def _settle(self) -> None:
        """Wake everything that waits for this end."""
        self.done.set()
        self.open.set()
        self._room.set()


async def relay(
    client: tuple[StreamReader, StreamWriter], there: RelayEnd, upstream: Address, link: VirtualLink, clock: LinkClock
) -> None:
    """Relay one accepted connection to `upstream`, where `there` speaks, and back, until both sides are done."""
    here = RelayEnd()
    with clock.present():
        endpoint, far_endpoint = link.endpoints(here, there)
        here.attach(endpoint, there)
        there.attach(far_endpoint, here)
        endpoint.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(_serve_client(here, client, clock))
        group.create_task(_serve_upstream(there, upstream, clock))


async def _serve_client(end: RelayEnd, client: tuple[StreamReader, StreamWriter], clock: LinkClock) -> None:
    reader, writer = client
    async with _closing(writer, end):
        await end.open.wait()
        if end.error is None:
            await end.serve(reader, writer, clock)
            await end.done.wait()
        if end.error is not None:
            reset(writer)


async def _serve_upstream(end: RelayEnd, upstream: Address, clock: LinkClock) -> None:
    await end.open.wait()
    if end.error is not None:
        return
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(sock=await connected_socket(*upstream))
    except (OSError, TimeoutError):
        with clock.present():
            end.abandon()
        return
    async with _closing(writer, end):
        await end.serve(reader, writer, clock)
        await end.done.wait()
        if end.error is not None:
            reset(writer)


def reset(writer: StreamWriter) -> None:
    """Drop the connection with RST, as the kernel of a killed process would."""
    sock: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.asynccontextmanager
async def _closing(writer: StreamWriter, end: RelayEnd) -> AsyncIterator[None]:
    try:
        yield
    except asyncio.CancelledError:
        # The link is closed: a program that does not read must not keep it from that, nor take a part for the whole.
        writer.transport.abort() if end.is_passed_on else reset(writer)
        raise
    finally:
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()
