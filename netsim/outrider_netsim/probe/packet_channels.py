"""Send numbered packets from one socket to another, as datagrams or over streams, and record their times.

Standard library only.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]  # what json.loads gives

SO_TIMESTAMPNS = 35
SO_RXQ_OVFL = 40
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
BUFFER_BYTES = 16 << 20
CHUNK_BYTES = 1 << 16
NUMBER = struct.Struct("!II")  # train, packet
_ANCILLARY_BYTES = 128


@dataclass(slots=True)
class PacketLog:
    """Send and receive times of one direction of a train."""

    # In ns of the wall clock, for sends as well: SO_TIMESTAMPNS stamps received packets with it.

    sent_ns: list[int] = field(default_factory=list)
    received_ns: dict[int, int] = field(default_factory=dict)
    blocked: int = 0
    overflows: int = 0

    @property
    def missing(self) -> int:
        return len(self.sent_ns) - len(self.received_ns)

    def as_json(self) -> Json:
        return {
            "sent_ns": self.sent_ns,
            "received_ns": [self.received_ns.get(number) for number in range(len(self.sent_ns))],
            "blocked": self.blocked,
            "overflows": self.overflows,
        }


class PacketChannel(Protocol):
    """One direction: sends numbered packets and records those that arrive."""

    seen: PacketLog

    def send(self, number: int) -> None: ...
    def sinks(self) -> Sequence[socket.socket]: ...
    def take(self, sink: socket.socket) -> None: ...


class DatagramChannel:
    """Numbered UDP packets from one connected socket to another."""

    def __init__(self, source: socket.socket, sink: socket.socket, train: int, payload_bytes: int) -> None:
        self.seen = PacketLog()
        self._source, self._sink, self._train = source, sink, train
        self._padding = bytes(payload_bytes - NUMBER.size)

    def send(self, number: int) -> None:
        packet = NUMBER.pack(self._train, number) + self._padding
        while True:
            # Taken again for every attempt: waiting for room in the queue is not delay of the link.
            now = time.time_ns()
            try:
                self._source.send(packet, socket.MSG_DONTWAIT)
            except BlockingIOError:  # the queue behind the socket is full
                self.seen.blocked += 1
                select.select([], [self._source], [], 1.0)
                continue
            self.seen.sent_ns.append(now)
            return

    def sinks(self) -> Sequence[socket.socket]:
        return [self._sink]

    def take(self, sink: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, ancillary, _, _ = sink.recvmsg(CHUNK_BYTES, _ANCILLARY_BYTES, socket.MSG_DONTWAIT)
                self._note(data, ancillary)

    def _note(self, data: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        when, overflows = _stamps(ancillary)
        self.seen.overflows = max(self.seen.overflows, overflows)
        if len(data) >= NUMBER.size:
            train, number = NUMBER.unpack_from(data)
            # Not a late packet of an earlier train.
            if train == self._train:
                # The first copy counts, should the network duplicate a packet.
                self.seen.received_ns.setdefault(number, when)


class StreamChannel:
    """Numbered messages over many TCP connections, one after the other."""

    def __init__(self, sources: Sequence[socket.socket], sinks: Sequence[socket.socket], message_bytes: int) -> None:
        self.seen = PacketLog()
        self._sources, self._sinks, self._message_bytes = sources, sinks, message_bytes
        self._partial = {sink: bytearray() for sink in sinks}

    def send(self, number: int) -> None:
        message = NUMBER.pack(0, number).ljust(self._message_bytes, b"\0")
        self.seen.sent_ns.append(time.time_ns())
        self._sources[number % len(self._sources)].sendall(message)

    def sinks(self) -> Sequence[socket.socket]:
        return self._sinks

    def take(self, sink: socket.socket) -> None:
        data, ancillary, _, _ = sink.recvmsg(CHUNK_BYTES, _ANCILLARY_BYTES, socket.MSG_DONTWAIT)
        if not data:
            raise ConnectionError("the link closed a connection while it was probed")
        when, _ = _stamps(ancillary)
        partial = self._partial[sink]
        partial += data
        while len(partial) >= self._message_bytes:
            _, number = NUMBER.unpack_from(partial)
            self.seen.received_ns[number] = when
            del partial[: self._message_bytes]


def stamp_arrivals(sink: socket.socket) -> None:
    """Have the kernel stamp received packets and count overflows, and enlarge the socket's buffers."""
    if sys.platform != "linux":
        return
    sink.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    if sink.type == socket.SOCK_DGRAM:
        sink.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        for forced, limited in ((SO_SNDBUFFORCE, socket.SO_SNDBUF), (SO_RCVBUFFORCE, socket.SO_RCVBUF)):
            # The forced ones ignore net.core.rmem_max and wmem_max, but need privileges.
            try:
                sink.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
            except PermissionError:
                sink.setsockopt(socket.SOL_SOCKET, limited, BUFFER_BYTES)


def _stamps(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """Return the receive time in ns of the wall clock and the number of overflows so far."""
    when, overflows = 0, 0
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("@ll", data[: struct.calcsize("@ll")])
            when = seconds * 1_000_000_000 + nanoseconds
        elif level == socket.SOL_SOCKET and kind == SO_RXQ_OVFL:
            (overflows,) = struct.unpack("@I", data[:4])
    return when or time.time_ns(), overflows
