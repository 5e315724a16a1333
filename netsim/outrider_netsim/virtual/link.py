"""The virtual engine: a link in virtual time, for sweeps and for testing programs. Nothing sleeps.

    link.send("up", 1514, arrived)              datagrams: may be lost or reordered
    conn = await link.connect()                 asyncio programs that exchange messages (connection.py)

The same profile, seed and program give the same events, byte for byte in a packet log. There is no address to connect
to: real programs cannot use this link.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from outrider_netsim.core.engine_names import DEFAULT_CONGESTION, WAYS, Way
from outrider_netsim.impairments.packet import Packet
from outrider_netsim.impairments.path import LinkStats, Path
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.recording.recorder import PacketRecorder
from outrider_netsim.tcp.congestion import congestion_control
from outrider_netsim.tcp.endpoint import TcpEndpoint, TcpUser
from outrider_netsim.virtual.clock import VirtualClock, VirtualLoop
from outrider_netsim.virtual.connection import MessageConnection, open_connection


@dataclass(slots=True)
class _VirtualPacket(Packet):
    arrived: Callable[[], None]


class VirtualLink:
    """A link of `profile` on `clock`; planned outages and traces count from the clock's current time.

    The seed (default: the profile's) fixes the fate of the n-th packet of each direction. `congestion` ("cubic",
    "reno") is that of connections. Raises EngineError for another one.
    """

    engine = "virtual"

    def __init__(
        self,
        profile: Profile,
        seed: int | str | None = None,
        clock: VirtualClock | None = None,
        *,
        congestion: str = DEFAULT_CONGESTION,
    ) -> None:
        congestion_control(congestion)  # refuses others now, not with the first connection
        self.profile = profile
        self.clock = clock or VirtualClock()
        seed = profile.seed if seed is None else seed
        self._created_at = self.clock.now
        self._lanes = {way: self._lane(way, direction, seed) for way, direction in profile.directions.items()}
        self._congestion = congestion
        self._connections = 0
        self._accepted: asyncio.Queue[MessageConnection] = asyncio.Queue()

    @property
    def is_cut(self) -> bool:
        """True between `cut` and `restore`; planned outages do not count."""
        return any(lane.path.outages.is_cut for lane in self._lanes.values())

    @property
    def stats(self) -> LinkStats:
        return LinkStats(self._lanes["up"].path.stats, self._lanes["down"].path.stats, self._connections)

    def cut(self, ways: Sequence[Way] = WAYS) -> None:
        """Drop packets sent these ways from now on; packets under way still arrive."""
        for way in ways:
            self._lanes[way].path.outages.is_cut = True

    def restore(self, ways: Sequence[Way] = WAYS) -> None:
        for way in ways:
            self._lanes[way].path.outages.is_cut = False

    def set(self, profile: Profile) -> None:
        """Change the link from now on; planned outages stay those of the first profile."""
        self.profile = profile
        for way, direction in profile.directions.items():
            self._lanes[way].set(direction)

    def send(self, way: Way, size_bytes: int, arrived: Callable[[], None]) -> None:
        """Send one packet of that size on Ethernet now and call `arrived` if and when it arrives."""
        self._lanes[way].send(size_bytes, arrived)

    def endpoints(self, client: TcpUser, server: TcpUser) -> tuple[TcpEndpoint, TcpEndpoint]:
        """Create both ends of a connection; the client's must be opened."""
        self._connections += 1
        here = TcpEndpoint(self.clock, self._lanes["up"].send, client, self._congestion, is_open=False)
        there = TcpEndpoint(self.clock, self._lanes["down"].send, server, self._congestion, is_open=False)
        here.connect_to(there)
        return here, there

    async def connect(self) -> MessageConnection:
        """Open a connection as a client, which takes a round trip; `accept` returns its other end.

        Raises TimeoutError when the link stays dead for too long.
        """
        self._check_loop()
        return await open_connection(self.endpoints, self._accepted.put_nowait)

    async def accept(self) -> MessageConnection:
        """Return the server's end of the next connection that arrives."""
        self._check_loop()
        return await self._accepted.get()

    @contextlib.contextmanager
    def packet_log(self, file: str | os.PathLike[str]) -> Iterator[None]:
        """Write a line of CSV for every packet that enters meanwhile (recorder.py). Raises OSError."""
        with open(file, "wb") as log:
            recorder = PacketRecorder(None, log.write, self._created_at, "")
            self.record_with(recorder)
            try:
                yield
            finally:
                recorder.finish()
                self.record_with(None)

    def record_with(self, recorder: PacketRecorder | None) -> None:
        """Tell `recorder` of every packet from now on."""
        self._lanes["up"].path.observe(None if recorder is None else recorder.up)
        self._lanes["down"].path.observe(None if recorder is None else recorder.down)

    def _lane(self, way: Way, direction: Direction, seed: int | str) -> _Lane:
        path = Path(direction, f"{seed}/{way}", self.profile.outages_of(way), started_at=self.clock.now)
        return _Lane(path, self.clock)

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop) or loop.clock is not self.clock:
            raise RuntimeError("this link is on another clock than the event loop: run the program with clock.run(...)")


class _Lane:
    """One direction: its path, polled at its events."""

    def __init__(self, path: Path, clock: VirtualClock) -> None:
        self.path = path
        self._clock = clock
        self._poll_at = float("inf")  # when the next poll is scheduled

    def send(self, size_bytes: int, arrived: Callable[[], None]) -> None:
        self.path.push(_VirtualPacket(b"", size_bytes, arrived), self._clock.now)
        self._plan()

    def set(self, direction: Direction) -> None:
        self.path.set(direction, self._clock.now)
        self._plan()

    def _plan(self) -> None:
        when = self.path.next_event()
        if when is not None and when < self._poll_at:
            # A path may be due in the past, where it was changed; the clock never goes back.
            self._poll_at = max(when, self._clock.now)
            self._clock.call_at(self._poll_at, self._poll)

    def _poll(self) -> None:
        if self._clock.now < self._poll_at:
            # An earlier poll has replaced this one.
            return
        self._poll_at = float("inf")
        for packet in self.path.pop_ready(self._clock.now):
            assert isinstance(packet, _VirtualPacket)
            # The receiver's checksum finds a corrupt one.
            if not packet.is_corrupt:
                packet.arrived()
        self._plan()
