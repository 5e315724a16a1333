"""Records the packets of a link's two paths in a capture, a log or both.

The log has a line for each packet, written when its fate is known:

    number,direction,bytes,entered_s,left_s,fate
    17,up,1514,2.031415926,2.058979323,arrived
    18,up,1514,2.031431592,,queue

`number` counts the packets of a direction from 1 as they enter; `bytes` are those that the rate counts, 14 of Ethernet
included; times are seconds since the link's start.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outrider_netsim.core.engine_names import Way
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.impairments.impairment import DropReason, Packet
from outrider_netsim.recording.pcapng import CLIENT_SIDE, INBOUND, OUTBOUND, SERVER_SIDE, file_start, packet_block

Fate = Literal["arrived", "corrupted", "duplicate", "under way"] | DropReason

LOG_HEADER = b"number,direction,bytes,entered_s,left_s,fate\n"
WRITE_EVERY_S = 0.1
BATCH_BLOCKS = 64  # joined at a time: a thread that joins holds the interpreter lock

Write = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class RecordingFiles:
    """Where to record a link's packets; None for no such file."""

    pcap: str | None = None
    packet_log: str | None = None

    def __bool__(self) -> bool:
        return bool(self.pcap or self.packet_log)

    def create(self) -> None:
        """Create the files, empty. Raises ProfileError for one that cannot be written."""
        if self.pcap and self.packet_log and Path(self.pcap).resolve() == Path(self.packet_log).resolve():
            raise ProfileError(f"packet log {self.packet_log}: this is the capture's file; choose another")
        for name, path in (("capture", self.pcap), ("packet log", self.packet_log)):
            if path:
                try:
                    Path(path).write_bytes(b"")
                except OSError as error:
                    raise ProfileError(
                        f"{name} {path}: cannot be written ({error.strerror}): choose another file"
                    ) from None


NO_RECORDING = RecordingFiles()


class PacketRecorder:
    """Writes what the observers `up` and `down` are told; `started_at` is the paths' own time at the link's start."""

    def __init__(self, write_capture: Write | None, write_log: Write | None, started_at: float, comment: str) -> None:
        if write_capture is not None:
            write_capture(file_start(comment))
        if write_log is not None:
            write_log(LOG_HEADER)
        self.up = _LaneRecorder("up", write_capture, write_log, started_at)
        self.down = _LaneRecorder("down", write_capture, write_log, started_at)

    def finish(self) -> None:
        """Log the packets that have not left yet."""
        self.up.finish()
        self.down.finish()


class _LaneRecorder:
    """Observes one direction."""

    def __init__(self, way: Way, write_capture: Write | None, write_log: Write | None, started_at: float) -> None:
        self._way = way
        self._enters_at, self._leaves_at = (CLIENT_SIDE, SERVER_SIDE) if way == "up" else (SERVER_SIDE, CLIENT_SIDE)
        # Odd numbers up, even numbers down: the ids of a capture are those of both directions.
        self._first_id = 1 if way == "up" else 2
        self._write_capture = write_capture
        self._write_log = write_log
        self._started_at = started_at
        self._wall_ns = time.time_ns() - round(started_at * 1e9)
        self._entered = 0
        # By identity: a packet is the same object when it leaves. Held here, so that no other gets its id.
        self._under_way: dict[int, tuple[Packet, int, float]] = {}
        self._copies: set[int] = set()

    def entered(self, packet: Packet, now: float) -> None:
        self._under_way[id(packet)] = packet, self._entered, now
        self._capture(self._enters_at, OUTBOUND, packet, self._entered, now)
        self._entered += 1

    def copied(self, copy: Packet, now: float) -> None:
        self._under_way[id(copy)] = copy, self._entered, now
        self._copies.add(id(copy))
        self._entered += 1

    def left(self, packet: Packet, now: float) -> None:
        # A packet that was under way when the recording began has no entry.
        if found := self._under_way.pop(id(packet), None):
            _, number, entered_at = found
            self._capture(self._leaves_at, INBOUND, packet, number, now)
            arrived: Fate = "corrupted" if packet.is_corrupt else "arrived"
            if self._copies and id(packet) in self._copies:
                self._copies.discard(id(packet))
                arrived = "duplicate"
            self._log(number, packet, entered_at, now, arrived)

    def dropped(self, packet: Packet, now: float, reason: DropReason) -> None:
        if found := self._under_way.pop(id(packet), None):
            self._copies.discard(id(packet))
            _, number, entered_at = found
            self._log(number, packet, entered_at, None, reason)

    def finish(self) -> None:
        for packet, number, entered_at in self._under_way.values():
            self._log(number, packet, entered_at, None, "under way")
        self._under_way.clear()

    def _capture(self, interface: int, flags: int, packet: Packet, number: int, now: float) -> None:
        if self._write_capture is not None:
            time_ns = self._wall_ns + round(now * 1e9)
            packet_id = 2 * number + self._first_id
            self._write_capture(packet_block(interface, flags, time_ns, packet_id, packet.data))

    def _log(self, number: int, packet: Packet, entered_at: float, left_at: float | None, fate: Fate) -> None:
        if self._write_log is not None:
            left = "" if left_at is None else f"{left_at - self._started_at:.9f}"
            entered = f"{entered_at - self._started_at:.9f}"
            self._write_log(f"{number + 1},{self._way},{packet.size_bytes},{entered},{left},{fate}\n".encode())


class FileRecorder(PacketRecorder):
    """A recorder that writes RecordingFiles in threads of their own, so that a slow disk delays no packet.

    Raises OSError when a file cannot be opened.
    """

    def __init__(self, files: RecordingFiles, started_at: float, comment: str) -> None:
        self._capture = _BackgroundFile(files.pcap) if files.pcap else None
        self._packet_log = _BackgroundFile(files.packet_log) if files.packet_log else None
        super().__init__(
            self._capture.write if self._capture else None,
            self._packet_log.write if self._packet_log else None,
            started_at,
            comment,
        )

    def close(self) -> list[str]:
        """Write what is left; return a message for each file that is incomplete."""
        self.finish()
        return [error for file in (self._capture, self._packet_log) if file and (error := file.close())]


class _BackgroundFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by close()
        self._waiting: deque[bytes] = deque()
        self._failure: OSError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"write {path}", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        self._waiting.append(data)

    def close(self) -> str | None:
        """Write the rest; return what went wrong, if anything did."""
        self._ended.set()
        self._thread.join()
        if self._failure is None:
            return None
        return f"{self._path}: {self._failure.strerror}: the recording is incomplete"

    def _run(self) -> None:
        with self._file:
            while not self._ended.wait(WRITE_EVERY_S):
                self._drain()
            self._drain()

    def _drain(self) -> None:
        waiting = self._waiting
        while waiting:
            data = b"".join(waiting.popleft() for _ in range(min(BATCH_BLOCKS, len(waiting))))
            # After a failure nothing more: a full disk may have room again, but the file would have a hole.
            if self._failure is None:
                self._write_all(data)

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._failure = error
