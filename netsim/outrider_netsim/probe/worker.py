"""The probe's worker process: sends numbered UDP packets between two inherited sockets and writes their times.

    python -m outrider_netsim.probe.worker < task.json > times.json

It is a process of its own because an engine shares its caller's interpreter lock: the probe would measure the engine
waiting for it. One thread: between two sends it waits for arrivals. The kernel stamps received packets
(SO_TIMESTAMPNS), so nothing depends on how soon this process wakes up to read. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import sys
import time
from typing import Any

Json = dict[str, Any]  # what json.loads gives

SO_TIMESTAMPNS, SO_RXQ_OVFL = 35, 40
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
BUFFER_BYTES = 16 << 20
NUMBER = struct.Struct("!II")  # train, packet
CATCH_UP_S = 0.005  # a sender that was not scheduled catches up by at most this, never with a longer burst
STAMPING_S = 0.05  # the kernel begins to stamp a moment later, in a work queue


class PacketLane:
    """One direction of a train. Times are ns of the wall clock, as the kernel's stamps are."""

    def __init__(self, source: socket.socket, sink: socket.socket, train: int, payload_bytes: int) -> None:
        self.source, self.sink, self.train = source, sink, train
        self.padding = bytes(payload_bytes - NUMBER.size)
        self.sent_ns: list[int] = []
        self.received_ns: dict[int, int] = {}
        self.overflows = 0

    def send(self, number: int) -> None:
        packet = NUMBER.pack(self.train, number) + self.padding
        while True:
            # Taken again for every attempt: waiting for room in the queue is not delay of the link.
            now = time.time_ns()
            try:
                self.source.send(packet, socket.MSG_DONTWAIT)
            except BlockingIOError:
                select.select([], [self.source], [], 1.0)
                continue
            self.sent_ns.append(now)
            return

    def receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, ancillary, _, _ = self.sink.recvmsg(1 << 16, 128, socket.MSG_DONTWAIT)
                now = time.time_ns()
                for _, kind, value in ancillary:
                    if kind == SO_TIMESTAMPNS:
                        seconds, nanoseconds = struct.unpack("@ll", value)
                        now = seconds * 1_000_000_000 + nanoseconds
                    elif kind == SO_RXQ_OVFL:
                        self.overflows = int.from_bytes(value[:4], sys.byteorder)
                train, number = NUMBER.unpack_from(data)
                # Not a late packet of an earlier train; and the first copy counts, should the link duplicate one.
                if train == self.train:
                    self.received_ns.setdefault(number, now)


def send_train(lanes: list[PacketLane], packets: int, spacing_s: float, settle_s: float, duration_s: float) -> None:
    """Send `packets` on each lane, one every `spacing_s`, for `duration_s` at most; then wait for `settle_s`."""
    started = due = time.monotonic()
    for number in range(packets):
        _receive_until(lanes, due)
        for lane in lanes:
            lane.send(number)
        # A late sender catches up a little only: a burst would queue in the link, and measure that.
        due = max(due + spacing_s, time.monotonic() - CATCH_UP_S)
        if due > started + duration_s:
            break
    ended = time.monotonic()
    while time.monotonic() < ended + settle_s and any(len(lane.received_ns) < len(lane.sent_ns) for lane in lanes):
        _receive_until(lanes, min(time.monotonic() + 0.02, ended + settle_s))


def run_task(task: Json) -> Json:
    """Send the train that `task` describes; return the times each way, and by how much the wall clock was set."""
    clock_offset = time.time_ns() - time.monotonic_ns()
    near, far = (socket.socket(fileno=number) for number in task["sockets"])
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        end.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        for forced, limited in ((SO_SNDBUFFORCE, socket.SO_SNDBUF), (SO_RCVBUFFORCE, socket.SO_RCVBUF)):
            # The forced ones ignore net.core.rmem_max and wmem_max, but need privileges.
            try:
                end.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
            except PermissionError:
                end.setsockopt(socket.SOL_SOCKET, limited, BUFFER_BYTES)
    time.sleep(STAMPING_S)
    pairs = {"up": (near, far), "down": (far, near)}
    lanes = {way: PacketLane(*pairs[way], task["number"], task["payload_bytes"]) for way in task["ways"]}
    send_train(list(lanes.values()), task["packets"], task["spacing_s"], task["settle_s"], task["duration_s"])
    return {
        "clock_step_ns": time.time_ns() - time.monotonic_ns() - clock_offset,
        "overflows": max(lane.overflows for lane in lanes.values()),
        "ways": {way: [lane.sent_ns, list(lane.received_ns.items())] for way, lane in lanes.items()},
    }


def _receive_until(lanes: list[PacketLane], when: float) -> None:
    owners = {lane.sink: lane for lane in lanes}
    while True:
        readable, _, _ = select.select(list(owners), [], [], max(0.0, when - time.monotonic()))
        for sink in readable:
            owners[sink].receive()
        if time.monotonic() >= when:
            return


if __name__ == "__main__":
    json.dump(run_task(json.load(sys.stdin)), sys.stdout)
