"""The virtual engine: a link in virtual time, for sweeps and for testing programs. Nothing sleeps.

    link.send("up", 1514, arrived)              datagrams: may be lost or reordered
    conn = await link.connect()                 asyncio programs that exchange messages

The same profile, seed and program give the same events, byte for byte in a packet log. There is no address to connect
to: real programs cannot use this link.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outrider_netsim.core.engine_names import DEFAULT_CONGESTION, WAYS, Way
from outrider_netsim.impairments.impairment import Packet
from outrider_netsim.impairments.path import LinkStats, Path
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.recording.recorder import PacketRecorder
from outrider_netsim.tcp.congestion import congestion_control
from outrider_netsim.tcp.endpoint import TcpEndpoint, TcpUser
from outrider_netsim.virtual.clock import VirtualClock, VirtualLoop

NewEndpoints = Callable[[TcpUser, TcpUser], tuple[TcpEndpoint, TcpEndpoint]]


class MessageConnection(TcpUser):
    """One end of a connection between two asyncio programs of one process, of messages with declared sizes.

    They arrive whole, in order and at the link's times. The receiver gets the very object that was sent; only its
    declared size is put on the link.
    """

    def __init__(self, on_open: Callable[[], None], on_failure: Callable[[OSError], None]) -> None:
        self._written = 0
        self._received = 0
        self._expected: deque[tuple[int, Any]] = deque()  # messages, opaque, with the byte after the last one
        self._inbox: asyncio.Queue[tuple[Any] | Exception] = asyncio.Queue()  # a message alone in a tuple
        self._on_open = on_open
        self._on_failure = on_failure
        self._end: TcpEndpoint | None = None
        self._peer: MessageConnection | None = None
        self._error: OSError | None = None
        self._closed = False

    def attach(self, end: TcpEndpoint, peer: MessageConnection) -> None:
        """Send messages to `peer` through `end`."""
        self._end, self._peer = end, peer

    def send(self, payload: Any, size_bytes: int) -> None:  # any object
        """Send a message of that size now. Raises BrokenPipeError after `close`, TimeoutError on a dead link."""
        if self._closed:
            raise BrokenPipeError("this end was closed: connect again")
        if self._error is not None:
            raise self._error
        assert self._end is not None
        assert self._peer is not None
        # An empty message counts as a byte.
        self._peer._expect(max(1, size_bytes), payload)
        self._end.write(max(1, size_bytes))

    async def receive(self) -> Any:  # what the other end sent
        """Return the next message. Raises EOFError after the last one, TimeoutError on a dead link."""
        item = await self._inbox.get()
        if isinstance(item, Exception):
            # For the next call too.
            self._inbox.put_nowait(item)
            raise item
        return item[0]

    def close(self) -> None:
        """Send nothing more; the other end reads EOF after the last message. Receiving goes on. Safe to call twice."""
        if not self._closed:
            self._closed = True
            assert self._end is not None
            self._end.finish()

    def _expect(self, size_bytes: int, message: Any) -> None:  # any object
        """Deliver `message` when that many more bytes have arrived."""
        self._written += size_bytes
        self._expected.append((self._written, message))

    def received(self, size_bytes: int) -> None:
        self._received += size_bytes
        while self._expected and self._expected[0][0] <= self._received:
            self._inbox.put_nowait((self._expected.popleft()[1],))

    def opened(self) -> None:
        self._on_open()

    def ended(self) -> None:
        self._inbox.put_nowait(EOFError("the other end closed the connection"))

    def failed(self, error: OSError) -> None:
        """Tell both programs: the other one may be waiting for what will never come."""
        for end in (self, self._peer):
            if end is not None and end._error is None:
                end._error = error
                end._inbox.put_nowait(error)
                end._on_failure(error)


async def open_connection(
    new_endpoints: NewEndpoints, accept: Callable[[MessageConnection], None]
) -> MessageConnection:
    """Open a connection in one round trip and return the client's end; `accept` gets the server's end after it.

    Raises TimeoutError when the link does not answer.
    """
    opened = asyncio.get_running_loop().create_future()

    def at_client() -> None:
        if not opened.done():
            opened.set_result(None)

    def failed(error: OSError) -> None:
        if not opened.done():
            opened.set_exception(error)

    client = MessageConnection(at_client, failed)
    server = MessageConnection(lambda: accept(server), lambda error: None)
    here, there = new_endpoints(client, server)
    client.attach(here, server)
    server.attach(there, client)
    here.open()
    await opened
    return client


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
