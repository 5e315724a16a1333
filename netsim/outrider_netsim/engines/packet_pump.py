"""The process that moves packets between two TUN devices through two Paths; ends when its parent does.

    A's device --read--> [ up: Path ] --write--> B's device
    A's device <--write- [ down: Path ] <--read- B's device      one thread, select() to the microsecond

It is a process of its own because in its parent it would wait for the interpreter lock, up to 5 ms at a time, while the
splices and the programs under test run there. The parent sends requests and gets counters over a multiprocessing pipe.
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
from typing import Literal, assert_never

from outrider_netsim.core.engine_names import Way
from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.impairments.impairment import Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.namespaces import syscalls
from outrider_netsim.namespaces.syscalls import die_with_parent
from outrider_netsim.profiles.profile import Profile
from outrider_netsim.recording.recorder import FileRecorder
from outrider_proto.terminal.text import print_line

READ_BYTES = 65_536
BATCH_PACKETS = 64  # read from one device before the other device and due packets get their turn
NICENESS = -10  # ahead of the programs under test, where permitted
WAKE_EARLY_S = 60e-6  # how long select() oversleeps on a quiet machine; the rest is busy waiting

# A profile changes both directions, a set names those that are cut; "stats" asks for the counters of both.
PumpRequest = Profile | frozenset[Way] | Literal["stats"]


class PumpLane:
    """One direction: packets read from `source` go through a path to `target`."""

    def __init__(self, source: int, target: int, path: Path) -> None:
        self.source = source
        self._target = target
        self.path = path

    def take(self) -> None:
        """Read waiting packets."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(BATCH_PACKETS):
                data = os.read(self.source, READ_BYTES)
                # IPv4 only: the link has no IPv6 but the kernel's own announcements.
                if data[0] >> 4 == 4:
                    self.path.push(Packet.of_ip(data), time.monotonic())

    def deliver(self) -> None:
        """Write due packets."""
        for packet in self.path.pop_ready(time.monotonic()):
            # What the device refuses is lost: a header that corruption made invalid (EINVAL), a full queue (EAGAIN).
            with contextlib.suppress(OSError):
                os.write(self._target, packet.data)


class PacketPump:
    """Serves both lanes and the parent's requests."""

    def __init__(self, channel: Connection, lanes: dict[Way, PumpLane], recorder: FileRecorder | None) -> None:
        self._channel = channel
        self._lanes = lanes
        self._recorder = recorder

    def close(self) -> None:
        """Write the rest of the recording; say what is missing from it, if anything is."""
        for message in self._recorder.close() if self._recorder else ():
            print_line(f"outrider-netsim: {message}", err=True)

    def serve(self) -> None:
        """Run until the parent closes the channel, which raises EOFError or ConnectionError."""
        lanes = tuple(self._lanes.values())
        sources = [self._channel.fileno(), *(lane.source for lane in lanes)]
        while True:
            ready, _, _ = select.select(sources, [], [], self._wait_s())
            # Requests first, so that a cut holds for every packet sent after it.
            while self._channel.poll():
                self._handle()
            for lane in lanes:
                if lane.source in ready:
                    lane.take()
                lane.deliver()

    def _wait_s(self) -> float | None:
        due = min((due for lane in self._lanes.values() if (due := lane.path.next_event()) is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic() - WAKE_EARLY_S)

    def _handle(self) -> None:
        now = time.monotonic()
        request: PumpRequest = self._channel.recv()
        match request:
            case Profile():
                for way, direction in request.directions.items():
                    self._lanes[way].path.set(direction, now)
            case frozenset():
                for way, lane in self._lanes.items():
                    lane.path.outages.is_cut = way in request
            case "stats":
                self._channel.send([lane.path.stats for lane in self._lanes.values()])
            case _:
                assert_never(request)


def ended_error(reason: str) -> EngineError:
    return EngineError(f"the packet pump has ended ({reason}): start the link again")


def start(channel: Connection, a: int, b: int) -> PacketPump:
    """Build the pump from the parent's LinkPlan, and say that it starts. Raises EOFError when the parent has gone."""
    plan: LinkPlan = channel.recv()
    profile, now = plan.profile, time.monotonic()
    up, down = (
        Path(direction, f"{plan.seed}/{way}", profile.outages_of(way), started_at=now)
        for way, direction in profile.directions.items()
    )
    recorder = None
    if plan.recording:
        recorder = FileRecorder(plan.recording, now, f"{profile.name}, seed {plan.seed}, engine tun")
        up.observe(recorder.up)
        down.observe(recorder.down)
    channel.send("started")
    return PacketPump(channel, {"up": PumpLane(a, b, up), "down": PumpLane(b, a, down)}, recorder)


def _be_prompt() -> None:
    """Reduce the process's own delays: timer slack, priority and garbage collection."""
    syscalls.prctl(syscalls.PR_SET_TIMERSLACK, 1)
    with contextlib.suppress(PermissionError):
        os.nice(NICENESS)
    # A collection would hold up packets for milliseconds; the objects made so far live until the end anyway.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Run as `python -m ... CHANNEL A B PARENT`: three descriptor numbers and the parent's process id."""
    channel_number, a, b, parent = sys.argv[1:]
    die_with_parent(signal.SIGKILL, int(parent))
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        # A terminal's keys are meant for the command; the pump ends with its parent.
        signal.signal(number, signal.SIG_IGN)
    _be_prompt()
    channel = Connection(os.dup(int(channel_number)))
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            pump = start(channel, os.dup(int(a)), os.dup(int(b)))
            try:
                pump.serve()
            finally:
                pump.close()
        except (EOFError, ConnectionError):
            raise
        except Exception as error:  # any failure ends the link, and its owner says why
            channel.send(ended_error(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
