"""Requests and replies of given sizes over one TCP connection across a link, timed at the client.

    A  --- request: what is wanted, padded --->  B
       <--- first part, in a write of its own ---     as a verdict
       <--- the rest ----------------------------     as its features

It needs only the standard library and outrider_netsim, so that it also runs in a bare guest system.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES, Side
from outrider_netsim.namespaces.namespaces import Namespaces

HEADER = struct.Struct("!III")  # bytes of the request, of the reply's first part, of the whole reply
TIMEOUT_S = 120.0  # of one exchange; TCP alone would try for a quarter of an hour
_INFO_BYTES = 232  # of struct tcp_info (linux/tcp.h)
_AT = {"rto_us": 8, "rtt_us": 68, "cwnd": 80, "reordering": 88, "resent": 100, "sent": 156, "dsacks": 216}
SIDES: tuple[Side, ...] = ("A", "B")


@dataclass(frozen=True, slots=True)
class ExchangeShape:
    """Sizes in bytes; `reply` includes its first part, and `first=0` means a single write."""

    reply: int
    first: int = 60
    request: int = 250

    def header(self) -> bytes:
        return HEADER.pack(self.request, self.first, self.reply)

    @classmethod
    def of(cls, header: bytes) -> ExchangeShape:
        request, first, reply = HEADER.unpack(header)
        return cls(reply, first, request)


@dataclass(frozen=True, slots=True)
class ExchangeTiming:
    """Time in ms from the request to the first part and to the whole reply.

    The rest are counts of the replying kernel, 0 where there are none.
    """

    first_ms: float
    whole_ms: float
    cwnd: int = 0  # when the request was sent
    reordering: int = 0
    packets: int = 0
    resent: int = 0
    needless: int = 0


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """The kernel's state of a TCP connection (struct tcp_info of linux/tcp.h).

    Counts are since the connection began; fields that an old kernel lacks are 0.
    """

    rto_us: int
    rtt_us: int
    cwnd: int  # packets that may be in flight
    reordering: int  # places by which a packet may be late before it counts as lost
    resent: int  # packets sent again
    sent: int  # packets with data, those sent again included
    dsacks: int  # packets that the other side reports as duplicates: resent needlessly

    @classmethod
    def of(cls, connection: socket.socket) -> TcpInfo:
        # An older kernel returns a shorter structure: its missing fields become 0.
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES).ljust(_INFO_BYTES, b"\0")
        return cls(**{name: struct.unpack_from("=I", data, offset)[0] for name, offset in _AT.items()})


class Exchanger(Protocol):
    """A connection on which one side asks and the other replies."""

    async def exchange(self, shape: ExchangeShape) -> ExchangeTiming:
        """Exchange once. Raises LinkError, TimeoutError or OSError when the reply does not come."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class TcpExchanger:
    """One connection from A to B, without a relay or library in between."""

    def __init__(self, namespaces: Namespaces, nagle: bool = False) -> None:
        self._namespaces = namespaces
        self._nagle = nagle

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._client = await self._namespaces.socket("A")
        with await self._namespaces.listener("B", LINK_ADDRESSES["B"]) as listener:
            accepting = asyncio.create_task(loop.sock_accept(listener))
            async with asyncio.timeout(TIMEOUT_S):
                await loop.sock_connect(self._client, listener.getsockname())
                self._server, _ = await accepting
        for end in (self._client, self._server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, not self._nagle)
        self._counted = TcpInfo.of(self._server)
        self._replying = asyncio.create_task(_reply_to_all(self._server))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._replying.cancel()
        await asyncio.gather(self._replying, return_exceptions=True)
        self._client.close()
        self._server.close()

    async def exchange(self, shape: ExchangeShape) -> ExchangeTiming:
        loop = asyncio.get_running_loop()
        before = TcpInfo.of(self._server)
        async with asyncio.timeout(TIMEOUT_S):
            started = time.perf_counter()
            await loop.sock_sendall(self._client, shape.header().ljust(shape.request, b"\0"))
            # Without a first part, the first byte is timed.
            await _receive(self._client, shape.first or 1)
            first = time.perf_counter()
            await _receive(self._client, shape.reply - (shape.first or 1))
            whole = time.perf_counter()
        return self._timing((first - started) * 1e3, (whole - started) * 1e3, before)

    def _timing(self, first_ms: float, whole_ms: float, before: TcpInfo) -> ExchangeTiming:
        # Counted from the last exchange's end: a DSACK comes a round trip after the packet that it reports.
        since, now = self._counted, TcpInfo.of(self._server)
        self._counted = now
        return ExchangeTiming(
            first_ms,
            whole_ms,
            before.cwnd,
            before.reordering,
            packets=now.sent - since.sent,
            resent=now.resent - since.resent,
            needless=now.dsacks - since.dsacks,
        )


async def set_sysctls(namespaces: Namespaces, settings: Mapping[str, str]) -> None:
    """Set them on both sides, for connections made from now on.

    Raises ProfileError for what the kernel does not accept.
    """
    for side in SIDES:
        for name, value in settings.items():
            await namespaces.call(side, "outrider_netsim.namespaces.sysctl:set_sysctl", name=name, value=value)


async def congestion_control(namespaces: Namespaces) -> str:
    """Return the congestion control that new connections of the replying side get."""
    with await namespaces.socket("B") as new:
        return new.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


async def _reply_to_all(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        shape = ExchangeShape.of(await _receive(connection, HEADER.size))
        await _receive(connection, shape.request - HEADER.size)
        # Two writes, as a verdict and its features are: one write would let them share a segment.
        for part in (shape.first, shape.reply - shape.first):
            if part:
                await loop.sock_sendall(connection, bytes(part))


async def _receive(connection: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes. Raises ConnectionError when the other side closes the connection."""
    loop = asyncio.get_running_loop()
    parts = bytearray()
    while len(parts) < size:
        part = await loop.sock_recv(connection, min(size - len(parts), 1 << 16))
        if not part:
            raise ConnectionError("the other side closed the connection")
        parts += part
    return bytes(parts)
