"""Relay one TCP connection through the link: bytes, end of stream and resets all take the link's time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass

from outrider_netsim.engines.link_clock import HALF_TICK_S, LinkClock
from outrider_netsim.engines.shaping import HANDSHAKE_TIMEOUT_S, ShapedStream, Shaper

READ_BYTES = 1 << 16
BUFFER_BYTES = 1 << 20  # under way in one direction; three times rate x round trip of the built-in profiles
CONNECT_TIMEOUT_S = 10.0


@dataclass(slots=True)
class PayloadStats:
    """Payload that came out of one direction."""

    bytes: int = 0
    chunks: int = 0


@dataclass(slots=True)
class RelayLane:
    """One direction of the link, shared by its connections."""

    shaper: Shaper
    stats: PayloadStats


class OneWayRelay:
    """One direction of one connection: reads from `source` and writes to `sink`, later."""

    def __init__(self, lane: RelayLane, clock: LinkClock, source: StreamReader, sink: StreamWriter) -> None:
        self._lane = lane
        self._clock = clock
        self._source = source
        self._sink = sink
        self._stream = ShapedStream(lane.shaper)
        self._pushed = asyncio.Event()
        self._popped = asyncio.Event()
        self._reset = False

    async def run(self) -> None:
        """Relay bytes until the source's end or reset has arrived at the sink."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed())
            group.create_task(self._deliver())

    async def _feed(self) -> None:
        # Anything but empty: an empty chunk is the end of the stream, which is pushed like all others.
        data = b"-"
        while data:
            data = await self._read()
            self._stream.push(data, self._clock.now())
            self._pushed.set()
            while self._stream.pending_bytes > BUFFER_BYTES:
                self._popped.clear()
                await self._popped.wait()

    async def _read(self) -> bytes:
        try:
            return await self._source.read(READ_BYTES)
        except OSError:
            self._reset = True
            return b""

    async def _deliver(self) -> None:
        while True:
            await self._clock.sleep_until(await self._next_arrival())
            for data in self._stream.pop_ready(self._clock.now() + HALF_TICK_S):
                if not data:
                    self._end()
                    return
                self._write(data)
            self._popped.set()
            # A dead sink is reported by the relay of the other direction; this one keeps draining its source.
            with contextlib.suppress(OSError):
                await self._sink.drain()

    async def _next_arrival(self) -> float:
        while (when := self._stream.next_event()) is None:
            self._pushed.clear()
            await self._pushed.wait()
        return when

    def _write(self, data: bytes) -> None:
        if not self._sink.is_closing():
            self._sink.write(data)
            self._lane.stats.bytes += len(data)
            self._lane.stats.chunks += 1

    def _end(self) -> None:
        if self._reset:
            reset(self._sink)
        elif not self._sink.is_closing():
            with contextlib.suppress(OSError):
                self._sink.write_eof()


async def relay(
    client: tuple[StreamReader, StreamWriter],
    upstream: tuple[str, int],
    up: RelayLane,
    down: RelayLane,
    clock: LinkClock,
) -> None:
    """Relay one accepted connection to `upstream` and back, until both sides are done."""
    # The kernel has already completed the client's handshake, in no time. The time that it would have taken on the link
    # is spent here, before the first byte.
    reader, writer = client
    await _cross(up.shaper, clock)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            server_reader, server_writer = await asyncio.open_connection(*upstream)
    except (OSError, TimeoutError):
        await _cross(down.shaper, clock)
        reset(writer)
        return
    try:
        await _cross(down.shaper, clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(OneWayRelay(up, clock, reader, server_writer).run())
            group.create_task(OneWayRelay(down, clock, server_reader, writer).run())
    finally:
        await _close(server_writer)
        await _close(writer)


async def _cross(shaper: Shaper, clock: LinkClock) -> None:
    """Wait for as long as a packet of the handshake takes."""
    stream = ShapedStream(shaper, HANDSHAKE_TIMEOUT_S)
    stream.push(b"", clock.now())
    while (when := stream.next_event()) is not None and not stream.pop_ready(clock.now() + HALF_TICK_S):
        await clock.sleep_until(when)


def reset(writer: StreamWriter) -> None:
    """Drop the connection with RST, as the kernel of a killed process would."""
    sock: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _close(writer: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()
