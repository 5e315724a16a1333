"""Packets through the kernel engine, and the same packets at the same times through a Path: what came of both.

Arguments: {name of a group: {"cases": {name: keys of a Direction}, "packets": of each, one every "spacing_s", of
"payload_bytes", "hold_s": how long a planned outage holds them, from "start_s" after the link's start}}.
Beside the groups: what a cut, a change, a trace and a planned outage do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import select
import socket
import statistics
import struct
import time
from dataclasses import replace
from typing import Any

from outrider_netsim.core.addresses import Address
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.kernel import KernelLink
from outrider_netsim.impairments.impairment import Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.profiles.profile import Bursts, Direction, Outage, Profile
from outrider_netsim.profiles.traces import ConditionTrace

HEADER_BYTES = 42  # as the rate counts them
NUMBER = struct.Struct("=I")
SMALL_BYTES = 64
SO_TIMESTAMPNS, SO_RCVBUFFORCE = 35, 33
SETTLE_S = 0.7


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    return asyncio.run(_measure(arguments))


async def _measure(arguments: dict[str, Any]) -> dict[str, Any]:
    found = {name: await _compared(group) for name, group in arguments.items()}
    async with KernelLink(_plan(Profile.symmetric("none", Direction()))) as link:
        pair = await _udp_pair(link)
        found |= {"cut": _cut(link, pair), "trace": await _trace(link, pair)}
    return found | {"outage": await _outage(), "left": [name for _, name in socket.if_nameindex()]}


async def _compared(group: dict[str, Any]) -> dict[str, Any]:
    """The cases of a group, one after the other."""
    found = {}
    directions = {name: _direction(keys) for name, keys in group["cases"].items()}
    if "hold_s" in group:
        # An outage counts from its link's start.
        hold = Outage(group["hold_s"], group["start_s"], hold=True)
        for name, direction in directions.items():
            async with KernelLink(_plan(Profile.symmetric(name, direction, outages=(hold,)))) as link:
                found[name] = await _case(link, direction, group)
        return found
    async with KernelLink(_plan(Profile.symmetric("none", Direction()))) as link:
        for name, direction in directions.items():
            link.set(Profile(name, direction, Direction()))
            found[name] = await _case(link, direction, group)
    return found


async def _case(link: KernelLink, direction: Direction, arguments: dict[str, Any]) -> dict[str, Any]:
    source, sink = await _udp_pair(link)
    before, size_bytes = link.stats.up, arguments["payload_bytes"]
    # In a thread: coherent delays and holds happen on the event loop.
    sent, received = await asyncio.to_thread(
        _send, source, sink, arguments["packets"], arguments["spacing_s"], size_bytes
    )
    after = link.stats.up
    seen = _summary(sent, received) | {
        "dropped": after.dropped_by_queue - before.dropped_by_queue,
        "lost": after.lost - before.lost,
        "out": after.packets_out - before.packets_out,
    }
    # In a Path the hold ends when the kernel's did, which is where the longest pause of arrivals ends.
    hold_s = arguments.get("hold_s")
    return {"kernel": seen, "path": _path(direction, sent, size_bytes, hold_s, seen["pause_ends_ns"])}


def _path(
    direction: Direction, sent_ns: list[int], size_bytes: int, hold_s: float | None, pause_ends_ns: int
) -> dict[str, Any]:
    start_ns = sent_ns[0]
    outages = (Outage(hold_s, (pause_ends_ns - start_ns) / 1e9 - hold_s, hold=True),) if hold_s else ()
    # Of a single flow fq_codel makes what codel does.
    aqm = "codel" if direction.aqm == "fq_codel" else direction.aqm
    path = Path(replace(direction, aqm=aqm), 1, outages)
    received: dict[int, int] = {}

    def poll(now: float) -> None:
        while (when := path.next_event()) is not None and when <= now:
            for packet in path.pop_ready(when):
                # A corrupt one fails its checksum.
                if not packet.is_corrupt:
                    received.setdefault(int(packet.data), start_ns + round(when * 1e9))

    for number, when in enumerate(sent_ns):
        poll((when - start_ns) / 1e9)
        path.push(Packet(b"%d" % number, size_bytes + HEADER_BYTES), (when - start_ns) / 1e9)
    poll(float("inf"))
    stats = path.stats
    return _summary(sent_ns, received) | {"dropped": stats.dropped_by_queue, "lost": stats.lost}


def _summary(sent_ns: list[int], received_ns: dict[int, int]) -> dict[str, Any]:
    delays_ms = {number: (when - sent_ns[number]) / 1e6 for number, when in received_ns.items()}
    pairs = [(delays_ms[n], delays_ms[n + 1]) for n in delays_ms if n + 1 in delays_ms]
    order = sorted(received_ns, key=lambda number: received_ns[number])
    gaps = [(later - earlier, later) for earlier, later in itertools.pairwise(sorted(received_ns.values()))]
    deviation_ms = statistics.pstdev(delays_ms.values())
    return {
        "came": len(received_ns),
        "mean_ms": statistics.mean(delays_ms.values()),
        "deviation_ms": deviation_ms,
        "most_ms": max(delays_ms.values()),
        "correlation": statistics.correlation(*zip(*pairs, strict=True)) if deviation_ms > 1 else 0.0,
        "overtaken": sum(later < earlier for earlier, later in itertools.pairwise(order)),
        "instants": 1 + sum(gap > 1e6 for gap, _ in gaps),
        "pause_s": max(gaps)[0] / 1e9,
        "pause_ends_ns": max(gaps)[1],
    }


def _direction(keys: dict[str, Any]) -> Direction:
    return Direction(**keys | {"bursts": Bursts(**keys["bursts"])} if "bursts" in keys else keys)


def _plan(profile: Profile) -> LinkPlan:
    return LinkPlan(profile, Address("127.0.0.1", 9), seed=1)


def _cut(link: KernelLink, pair: tuple[socket.socket, socket.socket]) -> dict[str, int]:
    """Send ten packets before, in and after a cut, on a link without losses."""
    link.set(Profile.symmetric("steady", Direction(20)))
    up = pair
    arrived = {}
    for name, change in (("before", None), ("cut", link.cut), ("restored", link.restore)):
        if change:
            change()
        arrived[name] = len(_send(*up, 10, 0.001, SMALL_BYTES)[1])
    link.cut()
    under_way = [_numbered(up[0], number) for number in range(10)]
    link.restore()
    link.set(replace(link.profile, name="again"))
    arrived["sent while cut, then changed"] = len(_drain(up[1], SETTLE_S)) if under_way else 0
    for number in range(10):
        _numbered(up[0], number)
    link.set(Profile.symmetric("changed", Direction(1)))
    arrived["under way at a change"] = len(_drain(up[1], SETTLE_S))
    return arrived


async def _trace(link: KernelLink, pair: tuple[socket.socket, socket.socket]) -> dict[str, list[float]]:
    """Median delays in the four half seconds of a trace with two rows, 100 ms away from their borders."""
    trace = ConditionTrace("steps", (0.0, 0.5), 1.0, delay_ms=(10.0, 40.0), rate_bps=(0.0, 8e6))
    link.set(Profile.symmetric("steps", Direction(trace=trace)))
    started = time.time_ns()
    sent, received = await asyncio.to_thread(_send, *pair, 500, 0.004, SMALL_BYTES)
    rows: list[list[float]] = [[] for _ in range(4)]
    for number, when in received.items():
        row, within = divmod((sent[number] - started) / 1e9, 0.5)
        if 0.1 < within < 0.4:
            rows[int(row)].append((when - sent[number]) / 1e6)
    return {"measured": [statistics.median(row) for row in rows], "wanted": [10.0, 40.0 + 106 * 8 / 8e3] * 2}


async def _outage() -> dict[str, Any]:
    """A planned outage from 0.5 s to 0.8 s: which of 100 packets, one every 10 ms, do not come."""
    profile = Profile.symmetric("gap", Direction(1), outages=(Outage(0.3, 0.5),))
    async with KernelLink(LinkPlan(profile, Address("127.0.0.1", 9))) as link:
        pair = await _udp_pair(link)
        _, received = await asyncio.to_thread(_send, *pair, 100, 0.01, SMALL_BYTES)
        missing = sorted(set(range(100)) - set(received))
        return {"missing": len(missing), "first": missing[0], "last": missing[-1], "wanted": [30, 50, 79]} | {
            "counted": link.stats.up.dropped_by_outage,
            "lost": link.stats.up.lost,
        }


async def _udp_pair(link: KernelLink) -> tuple[socket.socket, socket.socket]:
    a, b = await link.namespaces.socket("A", "udp"), await link.namespaces.socket("B", "udp")
    for sock, host in ((a, "10.77.0.1"), (b, "10.77.0.2")):
        sock.bind((host, 0))
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
    a.connect(b.getsockname())
    b.connect(a.getsockname())
    return a, b


def _send(
    source: socket.socket, sink: socket.socket, packets: int, spacing_s: float, payload_bytes: int
) -> tuple[list[int], dict[int, int]]:
    """Times of sending by packet, times of receiving by number, in ns of the wall clock."""
    sent: list[int] = []
    received: dict[int, int] = {}
    started = time.monotonic()
    for number in range(packets):
        while (wait := started + number * spacing_s - time.monotonic()) > 0:
            received |= _drain(sink, wait)
        sent.append(time.time_ns())
        _numbered(source, number, payload_bytes)
    return sent, received | _drain(sink, SETTLE_S)


def _numbered(source: socket.socket, number: int, payload_bytes: int = SMALL_BYTES) -> None:
    with contextlib.suppress(
        BlockingIOError, ConnectionRefusedError
    ):  # a full queue drops it: that is the link's doing
        source.send(NUMBER.pack(number).ljust(payload_bytes, b"\0"))


def _drain(sink: socket.socket, duration_s: float) -> dict[int, int]:
    """Return what arrives within `duration_s`."""
    received: dict[int, int] = {}
    until = time.monotonic() + duration_s
    while select.select([sink], [], [], max(0.0, until - time.monotonic()))[0]:
        data, ((_, _, stamp), *_), _, _ = sink.recvmsg(2048, 256)
        seconds, nanoseconds = struct.unpack("@ll", stamp)
        received[NUMBER.unpack_from(data)[0]] = seconds * 1_000_000_000 + nanoseconds
    return received
