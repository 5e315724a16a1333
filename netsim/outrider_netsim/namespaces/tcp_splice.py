"""Splice TCP connections from one network namespace into another, byte for byte.

    client --> [ splice ] ==== the link: its own TCP, from A to B ==== [ splice ] --> server
      its own namespace  socket of A                    listening in B  the server's namespace

End of stream, reset and backpressure are passed on, and small writes go out at once (TCP_NODELAY). Buffers are
small, so that the link holds both programs back.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import cast

from outrider_netsim.core.answers import AnswerReader
from outrider_netsim.core.async_resource import close_server
from outrider_netsim.core.small_buffers import BUFFER_BYTES, connected_socket, hold_back, keep_little_unsent
from outrider_netsim.namespaces.blackhole import ignore_connections

BACKLOG = 128
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, 0 seconds


class SpliceLeg(asyncio.Protocol):
    """One leg of a spliced connection; what arrives on it goes out on its peer."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._peer: SpliceLeg | None = None
        self._has_ended = False  # no more bytes will come
        self.answers: AnswerReader | None = None  # on a server's leg

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # asyncio sets this only on sockets that it creates itself, not on those of other namespaces.
        leg = self._transport.get_extra_info("socket")
        leg.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_little_unsent(leg)
        self._transport.set_write_buffer_limits(BUFFER_BYTES)
        # Until joined. In the next iteration: asyncio of Python 3.11.2 (Debian 12) starts to read after this method
        # whatever it does, and what arrives without a peer is lost.
        asyncio.get_running_loop().call_soon(self._transport.pause_reading)

    def join(self, peer: SpliceLeg) -> None:
        """Start passing bytes both ways."""
        # Either leg may have been closed while the other one was still connecting.
        self._peer, peer._peer = peer, self
        for end, other in ((self, peer), (peer, self)):
            if end.is_closed:
                other.reset()
        for end in (self, peer):
            end._resume()

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_passed_on(self) -> bool:
        """True when what came, to the end of the stream, is in the other leg's socket."""
        peer = self._open_peer
        return self._has_ended and (peer is None or not peer.get_write_buffer_size())

    def reset(self) -> None:
        """Close the leg with RST, which the program at its far end sees as a reset."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.answers is not None:
            self.answers.read(data)
        if (peer := self._open_peer) is not None:
            peer.write(data)

    def eof_received(self) -> bool:
        self._has_ended = True
        if (peer := self._open_peer) is not None:
            peer.write_eof()
        if self._peer is not None and self._peer._has_ended:
            self._close()
            self._peer._close()
        # The other way stays open.
        return True

    def pause_writing(self) -> None:
        if (peer := self._open_peer) is not None:
            peer.pause_reading()

    def resume_writing(self) -> None:
        if self._peer is not None:
            self._peer._resume()

    def connection_lost(self, error: Exception | None) -> None:
        peer, self._transport = self._peer, None
        if peer is not None and not (self._has_ended and peer._has_ended):
            # After the end of the stream there is nothing that a reset would have to say.
            peer._close() if self._has_ended else peer.reset()

    def _resume(self) -> None:
        # Not after the end of stream: asyncio would report it again and again.
        if self._transport is not None and not self._has_ended:
            self._transport.resume_reading()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()  # after everything is sent

    @property
    def _open_peer(self) -> asyncio.Transport | None:
        peer = self._peer._transport if self._peer is not None else None
        return peer if peer is not None and not peer.is_closing() else None


Dial = Callable[[int], Awaitable[SpliceLeg]]  # connects a new leg for a client of this port; raises OSError


class TcpSplice:
    """Accepts connections on `listener`, which it then owns, and joins each to a leg from `dial`.

    `forget` is told the client's port at a connection's end.
    """

    def __init__(self, listener: socket.socket, dial: Dial, forget: Callable[[int], None] = lambda _: None) -> None:
        self._listener = listener
        self._dial = dial
        self._forget = forget
        self._server: asyncio.Server | None = None
        self._joining: set[asyncio.Task[None]] = set()
        self._ends: set[SpliceLeg] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, sock=self._listener, backlog=BACKLOG)

    async def aclose(self) -> None:
        """Stop listening and reset open connections; safe to call twice."""
        if self._server is None:
            self._listener.close()
            return
        server, self._server = self._server, None
        await close_server(server, self._joining)
        for end in self._ends:
            end.reset()
        # asyncio closes an aborted socket in its next iteration; without this step some would stay open.
        await asyncio.sleep(0)
        await server.wait_closed()

    @property
    def is_sending(self) -> bool:
        """True while bytes of a client are still to come, or to be passed on."""
        return not all(end.is_passed_on for end in self._ends)

    def ignore_connections(self, *, ignored: bool) -> None:
        """Let new connections hang unanswered, as over a dead link, or no more."""
        ignore_connections(self._listener, ignored=ignored)

    def _accept(self) -> SpliceLeg:
        return _AcceptedLeg(self._begin, self._end)

    def _end(self, accepted: _AcceptedLeg) -> None:
        self._ends.discard(accepted)
        self._forget(accepted.client_port)

    def _begin(self, accepted: _AcceptedLeg) -> None:
        self._ends.add(accepted)
        if self._server is None:
            # Accepted just before aclose().
            accepted.reset()
            return
        task = asyncio.get_running_loop().create_task(self._join(accepted))
        # asyncio holds only weak references to tasks: without this one it could vanish half done.
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, accepted: _AcceptedLeg) -> None:
        try:
            accepted.join(await self._dial(accepted.client_port))
        except OSError:
            accepted.reset()
        except asyncio.CancelledError:
            accepted.reset()
            raise


class _AcceptedLeg(SpliceLeg):
    """An accepted leg, which tells its splice of its begin and end."""

    def __init__(self, begin: Callable[[_AcceptedLeg], None], end: Callable[[_AcceptedLeg], None]) -> None:
        super().__init__()
        self._begin = begin
        self._end = end
        self.client_port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.client_port = transport.get_extra_info("peername")[1]
        self._begin(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._end(self)


async def dial_with(own: socket.socket, host: str, port: int) -> SpliceLeg:
    """Connect a leg on `own`, a socket of the right namespace. Raises OSError."""
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(own, (host, port))
        _, end = await loop.create_connection(SpliceLeg, sock=own)
    except BaseException:
        own.close()
        raise
    return end


async def dial_locally(host: str, port: int) -> SpliceLeg:
    """Connect a leg from this process's own namespace. Raises OSError."""
    own = await connected_socket(host, port)
    _, end = await asyncio.get_running_loop().create_connection(SpliceLeg, sock=own)
    return end


def local_listener(host: str, port: int) -> socket.socket:
    """Bind a socket of this process's own namespace. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # Not by create_server(): [::] is to take IPv4 as well, and nobody is to connect before the buffers are small.
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hold_back(listener)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
