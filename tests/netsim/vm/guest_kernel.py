"""The kernel engine over real netem: delay, loss and rate against a profile, cut, restore, trace, outage and TCP.

Arguments: {"profile": name, "packets": for the delay, "loss": instead of the profile's, where it is measured,
"loss_packets": for it, "flood_s": seconds of load}.
Every measured figure comes beside the one that the profile says; delays in ms, up and down.
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
from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.profiles.profile import Direction, Outage, Profile
from outrider_netsim.profiles.traces import ConditionTrace

NUMBER = struct.Struct("=I")
SMALL_BYTES = 64
FULL_BYTES = 1472  # fills 1500 bytes of IP
LINK_BYTES = 1514  # as the rate counts them
SO_TIMESTAMPNS, SO_RCVBUFFORCE = 35, 33
SETTLE_S = 0.7


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    return asyncio.run(_measure(arguments))


async def _measure(arguments: dict[str, Any]) -> dict[str, Any]:
    profile = profile_named(arguments.get("profile", "paper-4g"))
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    upstream = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    async with KernelLink(LinkPlan(profile, upstream, seed=1)) as link:
        pair = await udp_pair(link)
        found: dict[str, Any] = {"seed_is_honoured": link.seed_is_honoured, "address": link.address}
        for way, (source, sink) in (("up", pair), ("down", pair[::-1])):
            direction = profile.up if way == "up" else profile.down
            found[way] = {
                "delay": _delay(source, sink, direction, arguments.get("packets", 2000)),
                "flood": _flood(source, sink, direction.rate_bps or 1e8, arguments.get("flood_s", 1.0)),
            }
        lossy = replace(profile.up, loss=arguments.get("loss", profile.up.loss))
        link.set(replace(profile, name="lossy", up=lossy))
        found["loss"] = _loss(*pair, lossy, arguments.get("loss_packets", 20_000))
        link.set(profile)
        found["cut"] = _cut(link, pair)
        found["tcp"] = await _tcp(link)
        found["trace"] = await _trace(link, pair)
        found["stats"] = repr(link.stats)
    found["outage"] = await _outage()
    server.close()
    found["left"] = [name for _, name in socket.if_nameindex()]
    return found


def _cut(link: KernelLink, pair: tuple[socket.socket, socket.socket]) -> dict[str, int]:
    """Send ten packets before, in and after a cut, on a link without losses."""
    link.set(Profile.symmetric("steady", Direction(20)))
    up = pair
    arrived = {}
    for name, change in (("before", None), ("cut", link.cut), ("restored", link.restore)):
        if change:
            change()
        arrived[name] = len(send(*up, 10, 0.001, SMALL_BYTES)[1])
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
    sent, received = await asyncio.to_thread(send, *pair, 500, 0.004, SMALL_BYTES)
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
        pair = await udp_pair(link)
        _, received = await asyncio.to_thread(send, *pair, 100, 0.01, SMALL_BYTES)
        missing = sorted(set(range(100)) - set(received))
        return {"missing": len(missing), "first": missing[0], "last": missing[-1], "wanted": [30, 50, 79]} | {
            "counted": link.stats.up.dropped_by_outage,
            "lost": link.stats.up.lost,
        }


async def _tcp(link: KernelLink) -> dict[str, float]:
    """Send bytes through the splices and back, which crosses the link twice."""
    link.set(Profile.symmetric("tcp", Direction(10)))
    host, _, port = link.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    taken = []
    for number in range(5):
        started = time.monotonic()
        writer.write(b"%4d" % number)
        assert await reader.readexactly(4) == b"%4d" % number
        taken.append((time.monotonic() - started) * 1000)
    writer.close()
    await writer.wait_closed()
    return {"round_trip_ms": statistics.median(taken), "wanted_ms": 20.0}


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()


async def udp_pair(link: KernelLink) -> tuple[socket.socket, socket.socket]:
    a, b = await link.namespaces.socket("A", "udp"), await link.namespaces.socket("B", "udp")
    for sock, host in ((a, "10.77.0.1"), (b, "10.77.0.2")):
        sock.bind((host, 0))
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
    a.connect(b.getsockname())
    b.connect(a.getsockname())
    return a, b


def _delay(source: socket.socket, sink: socket.socket, direction: Direction, packets: int) -> dict[str, float]:
    sent, received = send(source, sink, packets, 0.004, SMALL_BYTES)
    delays = [(received[number] - sent[number]) / 1e6 for number in received]
    order = sorted(received, key=lambda number: received[number])
    return {
        "mean": statistics.mean(delays),
        "mean wanted": direction.mean_delay_ms,
        "deviation": statistics.pstdev(delays),
        "deviation wanted": direction.delay_deviation_ms,
        "least": min(delays),
        "most": max(delays),
        "overtaken": sum(later < earlier for earlier, later in itertools.pairwise(order)),
    }


def _loss(source: socket.socket, sink: socket.socket, direction: Direction, packets: int) -> dict[str, float]:
    received = send(source, sink, packets, 0.001, SMALL_BYTES)[1]
    lost = [number not in received for number in range(packets)]
    follows = [later for earlier, later in itertools.pairwise(lost) if earlier]
    return {
        "share": sum(lost) / packets,
        "wanted": direction.mean_loss,
        "after a loss": sum(follows) / max(1, len(follows)),
    }


def _flood(source: socket.socket, sink: socket.socket, rate_bps: float, duration_s: float) -> dict[str, float]:
    packets = int(1.3 * rate_bps * duration_s / 8 / LINK_BYTES)
    received = send(source, sink, packets, duration_s / packets, FULL_BYTES)[1]
    times = sorted(received.values())
    settled = [when for when in times if times[0] + 2e8 < when < times[0] + duration_s * 1e9]
    span_s = (settled[-1] - settled[0]) / 1e9
    return {"bps": (len(settled) - 1) * LINK_BYTES * 8 / span_s, "bps wanted": rate_bps}


def send(
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
