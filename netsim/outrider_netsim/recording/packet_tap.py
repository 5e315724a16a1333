"""The process that records the packets of the kernel engine's link; ends when its parent hangs up.

    A: outrider1 --+                                         +-- outrider1 :B    a packet enters: veth.mirror's copy
                   +--> [ sorted by the kernel's stamps ] <--+
    A: outrider0 --+                                         +-- outrider0 :B    it leaves: the other side receives it

A packet is recognized by its content, in which its IP identification differs from that of others. What never leaves is
`missing` in the log: netem does not say which packets it drops.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from operator import itemgetter
from typing import cast

from outrider_netsim.core.errors import EngineError
from outrider_netsim.impairments import Packet, PacketObserver
from outrider_netsim.namespaces.interfaces import LINK_INTERFACE, PassedDescriptor, Side
from outrider_netsim.namespaces.namespaces import START_TIMEOUT_S, Namespaces, ended, readable, start_module
from outrider_netsim.namespaces.processes import die_with_parent
from outrider_netsim.recording.recorder import FileRecorder, RecordingFiles

ETH_P_ALL, ETH_P_IP = 0x0003, 0x0800  # linux/if_ether.h
SO_TIMESTAMPNS, SO_RCVBUFFORCE = 35, 33
SOL_PACKET, PACKET_STATISTICS = 263, 6
BUFFER_BYTES = 64 << 20
READ_BYTES = 65_536
ANCILLARY_BYTES = 64
SETTLE_NS = 50_000_000  # an event is taken once the sockets were read so long after it: then none is before it


def open_tap(name: str, *, everything: bool) -> PassedDescriptor:
    """Open a socket for the IPv4 packets that an interface receives, or for those that it sends too."""
    protocol = ETH_P_ALL if everything else ETH_P_IP
    # SOCK_DGRAM: packets begin with the IP header.
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(protocol)) as tap:
        tap.bind((name, protocol))
        # The forced one ignores net.core.rmem_max, but needs root outside the namespaces, too.
        try:
            tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        except PermissionError:
            tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        tap.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        tap.setblocking(False)
        return PassedDescriptor(tap.detach())


class TapProcess:
    """The process, as its parent sees it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Connection) -> None:
        self._process = process
        self._channel = channel

    @classmethod
    async def start(cls, namespaces: Namespaces, mirror: str, files: RecordingFiles, comment: str) -> TapProcess:
        """Start recording; the link's packets are copied to the interface `mirror` where they enter."""
        with contextlib.ExitStack() as ours:
            taps = []
            for side, name in (("A", mirror), ("B", LINK_INTERFACE), ("B", mirror), ("A", LINK_INTERFACE)):
                function = "outrider_netsim.recording.packet_tap:open_tap"
                taps.append(await namespaces.call(cast(Side, side), function, name=name, everything=name == mirror))
                ours.callback(os.close, taps[-1])
            channel, theirs = Pipe()
            # Our copy must go, or it would not notice that we hang up.
            ours.enter_context(theirs)
            process = start_module("outrider_netsim.recording.packet_tap", theirs.fileno(), *taps)
        tap = cls(process, channel)
        channel.send((files, comment))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await readable(channel.fileno())
            channel.recv()
        except (TimeoutError, EOFError):
            await tap.aclose()
            raise EngineError("the process that records packets did not start: try again") from None
        return tap

    async def aclose(self) -> None:
        """End the recording and wait until it is written."""
        self._channel.close()
        await ended(self._process)


class _TapLane:
    """One direction: finds for each packet that leaves the one that entered."""

    def __init__(self, observer: PacketObserver) -> None:
        self._observer = observer
        self._under_way: dict[bytes, deque[Packet]] = {}

    def entered(self, data: bytes, now: float) -> None:
        packet = Packet.of_ip(data)
        self._under_way.setdefault(data, deque()).append(packet)
        self._observer.entered(packet, now)

    def left(self, data: bytes, now: float) -> None:
        waiting = self._under_way.get(data)
        # None: it entered before the recording began.
        if waiting:
            self._observer.left(waiting.popleft(), now)
            if not waiting:
                del self._under_way[data]


class PacketTap:
    """Reads the four taps: (A's mirror, B's interface), which are up, and (B's mirror, A's interface)."""

    def __init__(
        self, recorder: FileRecorder, started_ns: int, up: list[socket.socket], down: list[socket.socket]
    ) -> None:
        self._recorder = recorder
        self._started_ns = started_ns
        lanes = (_TapLane(recorder.up), up), (_TapLane(recorder.down), down)
        self._sources = {
            tap: take for lane, taps in lanes for tap, take in zip(taps, (lane.entered, lane.left), strict=True)
        }
        self._events: list[tuple[int, socket.socket, bytes]] = []

    def serve(self, parent: int) -> None:
        """Record until `parent`, a descriptor, is readable: it has hung up then."""
        while True:
            timeout = SETTLE_NS / 1e9 if self._events else None
            descriptors = [parent, *(tap.fileno() for tap in self._sources)]
            ready, _, _ = select.select(descriptors, [], [], timeout)
            read_at = time.time_ns()
            self._read()
            self._take(read_at - SETTLE_NS)
            if parent in ready:
                return

    def close(self) -> list[str]:
        """Write the rest; return a message for what is missing from the recording."""
        self._read()
        self._take(None)
        messages = self._recorder.close("missing")
        overflows = sum(map(_overflows, self._sources))
        if overflows:
            messages.append(
                f"{overflows} packets came too fast to be recorded: enlarge net.core.rmem_max, or run as root"
            )
        return messages

    def _read(self) -> None:
        for tap in self._sources:
            with contextlib.suppress(BlockingIOError):
                while True:
                    data, ancillary, _, _ = tap.recvmsg(READ_BYTES, ANCILLARY_BYTES)
                    if data and data[0] >> 4 == 4:
                        self._events.append((_stamp_ns(ancillary), tap, data))

    def _take(self, until_ns: int | None) -> None:
        # A stable sort, and mirrors are read first: with equal stamps a packet enters before it leaves.
        self._events.sort(key=itemgetter(0))
        taken = 0
        for stamp_ns, tap, data in self._events:
            if until_ns is not None and stamp_ns > until_ns:
                break
            self._sources[tap](data, (stamp_ns - self._started_ns) / 1e9)
            taken += 1
        del self._events[:taken]


def _stamp_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("@ll", data[: struct.calcsize("@ll")])
            return int(seconds * 1_000_000_000 + nanoseconds)
    return time.time_ns()


def _overflows(tap: socket.socket) -> int:
    # struct tpacket_stats: packets, drops.
    return int(struct.unpack("@II", tap.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1])


def main() -> None:
    """Run as `python -m ... CHANNEL A1 B0 B1 A0 PARENT`: descriptors, and the parent's process id."""
    channel_number, *taps, parent = map(int, sys.argv[1:])
    die_with_parent(signal.SIGKILL, parent)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        # A terminal's keys are meant for the command; the recording ends with its parent.
        signal.signal(number, signal.SIG_IGN)
    channel = Connection(channel_number)
    files, comment = channel.recv()
    assert isinstance(files, RecordingFiles)
    started_ns = time.time_ns()
    sockets = [socket.socket(fileno=number) for number in taps]
    tap = PacketTap(FileRecorder(files, 0.0, comment), started_ns, sockets[:2], sockets[2:])
    channel.send("started")
    tap.serve(channel.fileno())
    for message in tap.close():
        print(f"outrider-netsim: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
