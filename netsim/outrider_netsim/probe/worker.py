"""The probe's worker process: sends and receives on inherited sockets.

    python -m outrider_netsim.probe.worker < task.json > seen.json       (sockets are inherited descriptors)

It is a process of its own because a user-space engine shares the caller's interpreter lock: the probe would measure the
engine waiting for it. One thread: between two sends it waits for arrivals. On Linux the kernel stamps received packets
(SO_TIMESTAMPNS), so nothing depends on how soon this process wakes up to read; a send is stamped right before its
system call. Standard library only.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from outrider_netsim.probe.packet_channels import (
    CHUNK_BYTES,
    NUMBER,
    DatagramChannel,
    Json,
    PacketChannel,
    StreamChannel,
    stamp_arrivals,
)

CATCH_UP_S = 0.005  # a sender that was not scheduled catches up by at most this, never with a longer burst
CONNECT_TIMEOUT_S = 30.0


def send_trains(
    channels: Sequence[PacketChannel], packets: int, spacing_s: float, settle_s: float, duration_s: float
) -> None:
    """Send `packets` on each channel, one every `spacing_s`, and receive meanwhile.

    Sending stops after `duration_s`; the last packets have `settle_s` to arrive.
    """
    started = due = time.monotonic()
    for number in range(packets):
        _receive_until(channels, due)
        for channel in channels:
            channel.send(number)
        # A late sender catches up a little only: a burst would queue in the link, and measure that.
        due = max(due + spacing_s, time.monotonic() - CATCH_UP_S)
        if due > started + duration_s:
            break
    ended = time.monotonic()
    while time.monotonic() < ended + settle_s and any(channel.seen.missing for channel in channels):
        _receive_until(channels, min(time.monotonic() + 0.02, ended + settle_s))


def pour(
    sources: Sequence[socket.socket], sinks: Sequence[socket.socket], offered_bps: float, duration_s: float
) -> tuple[int, list[Any]]:
    """Write to streams for `duration_s` as fast as they accept, at most `offered_bps` of payload.

    Returns how many bytes were written and what arrived until then, as [wall ns, bytes].
    """
    for source in sources:
        source.setblocking(False)
    written, arrivals, chunk = 0, [], bytes(CHUNK_BYTES)
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < duration_s:
        may_write = written * 8 <= offered_bps * elapsed
        readable, writable, _ = select.select(sinks, sources if may_write else [], [], 0.001)
        for source in writable:
            written += source.send(chunk)
        for sink in readable:
            size = len(sink.recv(CHUNK_BYTES))
            arrivals.append([time.time_ns(), size])
    return written, arrivals


def open_streams(address: tuple[str, int], listener: socket.socket, count: int) -> list[list[socket.socket]]:
    """Open `count` connections through the link; return our ends, and the other ends in the same order."""
    near = [socket.create_connection(address, CONNECT_TIMEOUT_S) for _ in range(count)]
    for number, connection in enumerate(near):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(NUMBER.pack(0, number))
    listener.settimeout(CONNECT_TIMEOUT_S)
    far: dict[int, socket.socket] = {}
    for _ in range(count):
        connection, _peer = listener.accept()
        connection.settimeout(CONNECT_TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _, number = NUMBER.unpack(connection.recv(NUMBER.size, socket.MSG_WAITALL))
        far[number] = connection
    return [near, [far[number] for number in range(count)]]


def run_task(task: Json) -> Json:
    """Run one task (targets.py writes its keys) and return what was seen each way."""
    # If the wall clock is set meanwhile, its offset from the monotonic clock changes, and the stamps are worthless.
    clock_offset = time.time_ns() - time.monotonic_ns()
    match task["kind"]:
        case "datagrams":
            seen = _datagrams(task)
        case "streams":
            seen = _streams(task)
        case "pour":
            seen = _pour(task)
        case kind:
            raise ValueError(f"kind={kind!r}: need datagrams, streams or pour")
    step_ns = time.time_ns() - time.monotonic_ns() - clock_offset
    return {"ways": seen, "clock_step_ns": step_ns}


def _datagrams(task: Json) -> Json:
    ends = [socket.socket(fileno=number) for number in task["sockets"]]
    pairs = {"up": (ends[0], ends[1]), "down": (ends[1], ends[0])}
    channels = {way: DatagramChannel(*pairs[way], task["number"], task["payload_bytes"]) for way in task["ways"]}
    return _fire(channels, ends, task)


def _streams(task: Json) -> Json:
    near, far = _open(task)
    ends = {"up": (near, far), "down": (far, near)}
    channels = {way: StreamChannel(*ends[way], task["payload_bytes"]) for way in task["ways"]}
    return _fire(channels, near + far, task)


def _fire(channels: Mapping[str, PacketChannel], ends: Sequence[socket.socket], task: Json) -> Json:
    for end in ends:
        stamp_arrivals(end)
    # The kernel enables stamping a moment later, in a work queue.
    time.sleep(0.05)
    send_trains(list(channels.values()), task["packets"], task["spacing_s"], task["settle_s"], task["duration_s"])
    return {way: channel.seen.as_json() for way, channel in channels.items()}


def _pour(task: Json) -> Json:
    near, far = _open(task)
    (way,) = task["ways"]
    sources, sinks = (near, far) if way == "up" else (far, near)
    started_ns = time.time_ns()
    written, arrivals = pour(sources, sinks, task["offered_bps"], task["duration_s"])
    ended_ns = time.time_ns()
    # Drop bytes still under way.
    for connection in (*sources, *sinks):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    return {way: {"started_ns": started_ns, "ended_ns": ended_ns, "written": written, "arrivals": arrivals}}


def _open(task: Json) -> list[list[socket.socket]]:
    listener = socket.socket(fileno=task["sockets"][0])
    return open_streams((task["host"], task["port"]), listener, task["connections"])


def _receive_until(channels: Sequence[PacketChannel], when: float) -> None:
    owners = {sink: channel for channel in channels for sink in channel.sinks()}
    while True:
        left = max(0.0, when - time.monotonic())
        readable, _, _ = select.select(list(owners), [], [], left)
        for sink in readable:
            owners[sink].take(sink)
        if time.monotonic() >= when:
            return


if __name__ == "__main__":
    json.dump(run_task(json.load(sys.stdin)), sys.stdout)
