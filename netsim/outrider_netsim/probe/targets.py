"""Probe targets: a pair of UDP sockets, TCP streams through a relay, or a virtual link. worker.py does the I/O."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from outrider_netsim.core.errors import EngineError
from outrider_netsim.probe.samples import WAYS, LoadTimes, PacketTimes, PacketTrain, SaturatingLoad, Transport, Way
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.virtual.link import VirtualLink

Json = dict[str, Any]  # what json.loads gives

PAYLOAD_BYTES = 64
CLOCK_STEP_S = 0.002
LOAD_CONNECTIONS = 32  # one alone would slow down after each loss
MAX_CONNECTIONS = 200
BACKLOG = 256


class DatagramTarget:
    """Two connected UDP sockets with the link between them: the client's end and the server's."""

    transport: Transport = "datagrams"
    full_payload_bytes = 1472  # fills 1500 bytes of IP
    overhead_bytes = 42  # UDP 8, IPv4 20, and 14 of Ethernet, which the rate counts too
    link_bytes = PAYLOAD_BYTES + overhead_bytes
    least_spacing_s = 0.0

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        client.connect(server.getsockname())
        server.connect(client.getsockname())
        self._sockets = client, server
        self._number = 0

    async def send_train(self, train: PacketTrain) -> dict[Way, PacketTimes]:
        """Raises EngineError when the measurement itself fails."""
        seen = await self._send(train, ["up", "down"], PAYLOAD_BYTES, None)
        return {way: _times(seen[way]) for way in ("up", "down")}

    async def send_load(self, load: SaturatingLoad) -> LoadTimes:
        """Raises EngineError when the measurement itself fails."""
        packet_bytes = self.full_payload_bytes + self.overhead_bytes
        spacing_s = packet_bytes * 8 / load.offered_bps
        train = PacketTrain(int(2 * load.duration_s / spacing_s), spacing_s, load.settle_s)
        seen = (await self._send(train, [load.way], self.full_payload_bytes, load.duration_s))[load.way]
        times = _times(seen)
        arrivals = sorted((when, float(packet_bytes)) for when in times.received_s if when is not None)
        started_s, ended_s = times.sent_s[0], times.sent_s[-1]
        offered_bps = (len(times.sent_s) - 1) * packet_bytes * 8 / (ended_s - started_s)
        return LoadTimes(started_s, ended_s, tuple(arrivals), offered_bps, bool(seen["blocked"]))

    async def control(self, train: PacketTrain) -> dict[Way, PacketTimes]:
        """Send the same train over bare loopback, to see what measuring costs on this machine."""
        with _loopback_socket() as client, _loopback_socket() as server:
            return await DatagramTarget(client, server).send_train(train)

    async def _send(
        self, train: PacketTrain, ways: Sequence[Way], payload_bytes: int, duration_s: float | None
    ) -> Json:
        self._number += 1
        return await run_worker(
            {
                "kind": "datagrams",
                "number": self._number,
                "ways": list(ways),
                "payload_bytes": payload_bytes,
                **_timing(train, duration_s),
            },
            self._sockets,
        )


class StreamTarget:
    """TCP connections to `address`, accepted at `listener`: many in turn for messages, one for the rate.

    A stream shows a lost packet as a stall: messages that take `stall_s` or longer count as lost. A connection carries
    a message only every `quiet_s`, so that none waits for the one before it, not even for a retransmitted one.
    """

    transport: Transport = "streams"
    segment_bytes = 1448  # payload of a full segment on Ethernet, with timestamps
    overhead_bytes = 66  # Ethernet, IPv4 and TCP headers with timestamps
    link_bytes = PAYLOAD_BYTES + overhead_bytes

    def __init__(self, address: tuple[str, int], listener: socket.socket, stall_s: float, quiet_s: float) -> None:
        self._address = address
        self._listener = listener
        self._stall_s = stall_s
        self._quiet_s = quiet_s

    @property
    def least_spacing_s(self) -> float:
        return self._quiet_s / MAX_CONNECTIONS

    async def send_train(self, train: PacketTrain) -> dict[Way, PacketTimes]:
        """Raises EngineError when the measurement itself fails."""
        task = {
            "kind": "streams",
            "ways": ["up", "down"],
            "payload_bytes": PAYLOAD_BYTES,
            "connections": min(MAX_CONNECTIONS, train.packets, math.ceil(self._quiet_s / train.spacing_s)),
        }
        seen = await self._run_worker(task | _timing(train, None))
        return {way: _stalls_as_lost(_times(seen[way]), self._stall_s) for way in ("up", "down")}

    async def send_load(self, load: SaturatingLoad) -> LoadTimes:
        """Measure the goodput of many connections together; bytes count with the headers of full segments."""
        inflation = (self.segment_bytes + self.overhead_bytes) / self.segment_bytes
        task = {
            "kind": "pour",
            "ways": [load.way],
            "connections": LOAD_CONNECTIONS,
            "offered_bps": 4 * load.offered_bps,  # TCP's windows limit the streams anyway
            "duration_s": load.duration_s,
        }
        seen = (await self._run_worker(task))[load.way]
        started_s, ended_s = seen["started_ns"] / 1e9, seen["ended_ns"] / 1e9
        arrivals = tuple((when / 1e9, size * inflation) for when, size in seen["arrivals"])
        offered_bps = seen["written"] * inflation * 8 / (ended_s - started_s)
        return LoadTimes(started_s, ended_s, arrivals, offered_bps, held_back=True)

    async def control(self, train: PacketTrain) -> dict[Way, PacketTimes]:
        """Send the same train over bare loopback, to see what measuring costs on this machine."""
        with listening_socket() as listener:
            return await StreamTarget(listener.getsockname(), listener, self._stall_s, self._quiet_s).send_train(train)

    async def _run_worker(self, task: Json) -> Json:
        host, port = self._address
        return await run_worker({**task, "host": host, "port": port}, [self._listener])


class VirtualTarget:
    """Both directions of a virtual link. Its time continues from one train to the next."""

    transport: Transport = "datagrams"
    link_bytes = 106  # as DatagramTarget's
    full_bytes = 1514
    least_spacing_s = 0.0

    def __init__(self, profile: Profile, seed: int) -> None:
        self._link = VirtualLink(profile, seed)

    async def send_train(self, train: PacketTrain) -> dict[Way, PacketTimes]:
        return self._carry(WAYS, train, self.link_bytes)

    async def send_load(self, load: SaturatingLoad) -> LoadTimes:
        spacing_s = self.full_bytes * 8 / load.offered_bps
        train = PacketTrain(int(load.duration_s / spacing_s), spacing_s, load.settle_s)
        times = self._carry([load.way], train, self.full_bytes)[load.way]
        arrivals = sorted((when, float(self.full_bytes)) for when in times.received_s if when is not None)
        return LoadTimes(times.sent_s[0], times.sent_s[-1], tuple(arrivals), load.offered_bps, held_back=False)

    async def control(self, train: PacketTrain) -> dict[Way, PacketTimes]:
        """Send the same train over a perfect link: measuring costs nothing in virtual time."""
        return await VirtualTarget(Profile.symmetric("none", Direction()), 0).send_train(train)

    def _carry(self, ways: Sequence[Way], train: PacketTrain, size_bytes: int) -> dict[Way, PacketTimes]:
        clock = self._link.clock
        sent = [clock.now + number * train.spacing_s for number in range(train.packets)]
        received: dict[Way, list[float | None]] = {way: [None] * train.packets for way in ways}

        def send(way: Way, number: int) -> None:
            self._link.send(way, size_bytes, partial(arrived, way, number))

        def arrived(way: Way, number: int) -> None:
            if received[way][number] is None:
                received[way][number] = clock.now

        for number, when in enumerate(sent):
            for way in ways:
                clock.call_at(when, partial(send, way, number))
        clock.run_until(sent[-1] + train.settle_s)
        return {way: PacketTimes(tuple(sent), tuple(received[way])) for way in ways}


async def run_worker(task: Json, sockets: Sequence[socket.socket]) -> Json:
    """Have a worker process run `task` on `sockets` and return what it saw each way.

    Raises EngineError when it fails, its sockets overflow, or the wall clock is set meanwhile.
    """
    descriptors = [each.fileno() for each in sockets]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outrider_netsim.probe.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=descriptors,
    )
    try:
        output, complaint = await process.communicate(json.dumps({**task, "sockets": descriptors}).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = complaint.decode().strip().splitlines()[-1:] or ["no message"]
        raise EngineError(f"the probe's worker failed: {last[0]}. Is the link up? Try again, or another --engine.")
    return _checked(json.loads(output))


def listening_socket() -> socket.socket:
    """Listen on loopback, for StreamTarget."""
    return socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)


def _checked(seen: Json) -> Json:
    if abs(seen["clock_step_ns"]) > CLOCK_STEP_S * 1e9:
        step_ms = seen["clock_step_ns"] / 1e6
        raise EngineError(f"the wall clock was set by {step_ms:.1f} ms while probing: probe again when it is quiet")
    overflows = max(way.get("overflows", 0) for way in seen["ways"].values())
    if overflows:
        raise EngineError(
            f"the probe's own socket had no room for {overflows} packets: enlarge it "
            "with sysctl net.core.rmem_max=16777216"
        )
    ways: Json = seen["ways"]
    return ways


def _timing(train: PacketTrain, duration_s: float | None) -> Json:
    return {
        "packets": train.packets,
        "spacing_s": train.spacing_s,
        "settle_s": train.settle_s,
        "duration_s": 1e9 if duration_s is None else duration_s,
    }


def _times(seen: Json) -> PacketTimes:
    sent = tuple(when / 1e9 for when in seen["sent_ns"])
    received = tuple(None if when is None else when / 1e9 for when in seen["received_ns"])
    return PacketTimes(sent, received)


def _stalls_as_lost(times: PacketTimes, stall_s: float) -> PacketTimes:
    pairs = zip(times.sent_s, times.received_s, strict=True)
    prompt = (None if received is None or received - sent >= stall_s else received for sent, received in pairs)
    return PacketTimes(times.sent_s, tuple(prompt))


@contextlib.contextmanager
def _loopback_socket() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock
