"""The process that carries packets between two TUN devices through two Paths; ends when its parent does.

    A's device --read--> [ up: Path ] --write--> B's device
    A's device <--write- [ down: Path ] <--read- B's device      one thread, select() to the microsecond

A process of its own, since in its parent's it would wait for the interpreter's lock, up to 5 ms at a time, while the
splices and the programs under test run there. The parent sends channel and gets statistics over a multiprocessing pipe.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import assert_never

from outrider_netsim.engines.messages import Cut, PumpRequest, PumpStats, Report, Restore, Set, Start, Started
from outrider_netsim.impairments import Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.namespaces import syscalls
from outrider_netsim.namespaces.processes import die_with_parent

READ_BYTES = 65_536
BATCH_PACKETS = 64  # read from one device before the other, and what is due, get their turn
NICENESS = -10  # ahead of the programs under test, where we may
WAKE_EARLY_S = 60e-6  # what select() oversleeps on a quiet machine; the rest of the wait is spent asking the clock


class PumpLane:
    """One direction: what it reads from `source` comes out of its path into `target`."""

    def __init__(self, source: int, target: int, path: Path) -> None:
        self.source = source
        self._target = target
        self.path = path

    def take(self) -> None:
        """Read what waits. IPv6 is left out: only the kernel's own announcements come by it."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(BATCH_PACKETS):
                data = os.read(self.source, READ_BYTES)
                if data[0] >> 4 == 4:
                    self.path.push(Packet.of_ip(data), time.monotonic())

    def deliver(self) -> None:
        """Write what is due."""
        for packet in self.path.pop_ready(time.monotonic()):
            with contextlib.suppress(BlockingIOError):
                os.write(self._target, packet.data)


class PacketPump:
    """Both lanes and the parent's channel."""

    def __init__(self, channel: Connection, up: PumpLane, down: PumpLane) -> None:
        self._channel = channel
        self._up = up
        self._down = down

    def serve(self) -> None:
        """Until the parent hangs up."""
        lanes = (self._up, self._down)
        sources = [self._channel.fileno(), *(lane.source for lane in lanes)]
        while True:
            ready, _, _ = select.select(sources, [], [], self._wait_s())
            while self._channel.poll():  # first, so that a cut holds for every packet sent after it
                self._handle()
            for lane in lanes:
                if lane.source in ready:
                    lane.take()
                lane.deliver()

    def _wait_s(self) -> float | None:
        due = min((due for lane in (self._up, self._down) if (due := lane.path.next_event()) is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic() - WAKE_EARLY_S)

    def _handle(self) -> None:
        now = time.monotonic()
        request: PumpRequest = self._channel.recv()
        match request:
            case Set(up, down):
                self._up.path.set(up, now)
                self._down.path.set(down, now)
            case Cut():
                self._up.path.cut(now)
                self._down.path.cut(now)
            case Restore():
                self._up.path.restore(now)
                self._down.path.restore(now)
            case Report():
                self._channel.send(PumpStats(self._up.path.stats, self._down.path.stats))
            case _:
                assert_never(request)


def start(channel: Connection, a: int, b: int) -> PacketPump:
    """The pump that the parent's first request describes. Raises EOFError when the parent has gone."""
    request = channel.recv()
    assert isinstance(request, Start)
    profile, now = request.profile, time.monotonic()
    up = Path(profile.up, f"{request.seed}/up", profile.outages, started_at=now)
    down = Path(profile.down, f"{request.seed}/down", profile.outages, started_at=now)
    channel.send(Started())
    return PacketPump(channel, PumpLane(a, b, up), PumpLane(b, a, down))


def _be_prompt() -> None:
    """Wake when due, not when convenient; never stop to look for garbage among what will not become any."""
    syscalls.prctl(syscalls.PR_SET_TIMERSLACK, 1)
    with contextlib.suppress(PermissionError):
        os.nice(NICENESS)
    gc.collect()
    gc.freeze()


def main() -> None:
    """`python -m ... ORDERS A B PARENT`: the numbers of three descriptors, the parent's id."""
    channel, a, b, parent = sys.argv[1:]
    die_with_parent(signal.SIGKILL, int(parent))
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal's keys are for the command; we end with the parent
    _be_prompt()
    with contextlib.suppress(EOFError, ConnectionError):
        start(Connection(os.dup(int(channel))), os.dup(int(a)), os.dup(int(b))).serve()


if __name__ == "__main__":
    main()
