"""The two ends between which a probe sends packets: UDP sockets in a link's namespaces, or those of a virtual link."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from outrider_netsim.core.engine_names import WAYS, Way
from outrider_netsim.core.errors import EngineError
from outrider_netsim.profiles.profile import Profile
from outrider_netsim.virtual.link import VirtualLink

HEADER_BYTES = 42  # UDP 8, IPv4 20, and 14 of Ethernet, which the rate counts too
SMALL_BYTES = 64 + HEADER_BYTES
FULL_BYTES = 1472 + HEADER_BYTES
CLOCK_STEP_S = 0.002


@dataclass(frozen=True, slots=True)
class PacketTrain:
    """Numbered packets on each of `ways` at once, one every `spacing_s`, then `settle_s` of waiting."""

    packets: int
    spacing_s: float
    settle_s: float
    size_bytes: int = SMALL_BYTES  # as the link's rate counts it
    ways: tuple[Way, ...] = WAYS
    duration_s: float = 1e9  # sending ends by then


@dataclass(frozen=True, slots=True)
class PacketTimes:
    """When the packets of one direction were sent and came, in s of one clock; None: never."""

    sent_s: tuple[float, ...]
    received_s: tuple[float | None, ...]

    @property
    def delays_ms(self) -> list[float]:
        """Delays of the packets that arrived, in the order sent."""
        pairs = zip(self.sent_s, self.received_s, strict=True)
        return [(received - sent) * 1000 for sent, received in pairs if received is not None]


class SocketEnds:
    """Two UDP sockets with the link between them: the client's end and the server's."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        client.connect(server.getsockname())
        server.connect(client.getsockname())
        self._descriptors = [client.fileno(), server.fileno()]
        self._number = 0

    async def send_train(self, train: PacketTrain) -> dict[Way, PacketTimes]:
        """Raises EngineError when the measurement itself fails."""
        self._number += 1
        task = {
            **{"sockets": self._descriptors, "number": self._number},
            **{"payload_bytes": train.size_bytes - HEADER_BYTES, **asdict(train)},
        }
        seen = await _worked(task, self._descriptors)
        if abs(seen["clock_step_ns"]) > CLOCK_STEP_S * 1e9:
            step_ms = seen["clock_step_ns"] / 1e6
            raise EngineError(f"the wall clock was set by {step_ms:.1f} ms while probing: probe again when it is quiet")
        if seen["overflows"]:
            raise EngineError(
                f"the probe's own socket had no room for {seen['overflows']} packets: enlarge it "
                "with sysctl net.core.rmem_max=16777216"
            )
        return {way: _times(*seen["ways"][way]) for way in train.ways}


class VirtualEnds:
    """Both ends of a virtual link. Its time continues from one train to the next."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self._link = VirtualLink(profile, seed)

    async def send_train(self, train: PacketTrain) -> dict[Way, PacketTimes]:
        clock = self._link.clock
        packets = min(train.packets, int(train.duration_s / train.spacing_s))
        sent = [clock.now + number * train.spacing_s for number in range(packets)]
        received: dict[Way, list[float | None]] = {way: [None] * packets for way in train.ways}

        def arrived(way: Way, number: int) -> None:
            if received[way][number] is None:
                received[way][number] = clock.now

        def send(way: Way, number: int) -> None:
            self._link.send(way, train.size_bytes, partial(arrived, way, number))

        for number, when in enumerate(sent):
            for way in train.ways:
                clock.call_at(when, partial(send, way, number))
        clock.run_until(sent[-1] + train.settle_s)
        return {way: PacketTimes(tuple(sent), tuple(received[way])) for way in train.ways}


ProbeEnds = SocketEnds | VirtualEnds


async def _worked(task: dict[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:  # Any: JSON
    """Return what a worker process saw. Raises EngineError when it fails."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outrider_netsim.probe.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=descriptors,
    )
    try:
        output, complaint = await process.communicate(json.dumps(task).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = complaint.decode().strip().splitlines()[-1:] or ["no message"]
        raise EngineError(f"the probe's worker failed: {last[0]}. Is the link up? Try again, or another --engine.")
    seen: dict[str, Any] = json.loads(output)
    return seen


def _times(sent_ns: list[int], received_ns: list[tuple[int, int]]) -> PacketTimes:
    received: list[float | None] = [None] * len(sent_ns)
    for number, when in received_ns:
        received[number] = when / 1e9
    return PacketTimes(tuple(when / 1e9 for when in sent_ns), tuple(received))
