"""Carry the bytes of TCP connections over a Path, without clock or sockets: `now` is an argument in seconds.

    stream -> segments --+                                        +-- in order -> stream
                         +-> [ wait for room ] -> [ the Path ] -->+
    stream -> segments --+       ^                     | lost     +-- in order -> stream
                                 +--- [ timeout ] <----+

A segment is the content of one packet. TCP delivers bytes in order, so a segment waits for those before it: a burst of
n packets arrives after the largest of n delays, as over netem, whose jitter reorders packets below TCP.

A relay must not lose bytes, so **a lost packet is a stall**: it is sent again one retransmission timeout after it was
sent, may be lost again, and then has twice the timeout, while the segments behind it arrive and wait. The timeout is
the mean round trip + 4 deviations, at least 200 ms (RFC 6298 with Linux's TCP_RTO_MIN), and 1 s in the handshake. The
rest of TCP is missing: fast retransmission, which repairs a loss within a long transfer sooner; needless retransmission
of reordered packets; and congestion control, so no loss slows a transfer down for good. Nor does the Path's queue
overflow: packets that it has no room for wait here.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, replace
from itertools import count

from outrider_netsim.impairments import ETHERNET_BYTES, Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.profiles.profile import Direction, Profile

SEGMENT_BYTES = 1448  # payload of a full packet on Ethernet: 1500 less IPv4 and TCP headers with timestamps
HEADER_BYTES = 52 + ETHERNET_BYTES  # of a packet, which also count for the rate
MIN_TIMEOUT_S = 0.2
HANDSHAKE_TIMEOUT_S = 1.0  # before a round trip has been measured
MAX_TIMEOUT_S = 120.0
_ID_BYTES = 8


def timeout_s(profile: Profile) -> float:
    """Return how long after its transmission a lost packet is first sent again."""
    deviation_ms = math.hypot(profile.up.delay_deviation_ms, profile.down.delay_deviation_ms)
    return min(MAX_TIMEOUT_S, max(MIN_TIMEOUT_S, (profile.round_trip_ms + 4 * deviation_ms) / 1000))


@dataclass(slots=True, eq=False)
class StreamSegment:
    """The `number`-th piece of a stream, and how long until it is sent again if it gets lost."""

    stream: ShapedStream
    number: int
    data: bytes
    timeout_s: float


class Shaper:
    """One direction of a link, shared by its streams."""

    def __init__(self, direction: Direction, seed: str, timeout_s: float = MIN_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self.path = Path(_unbuffered(direction), seed)
        self._now = 0.0
        self._room = _room(direction)
        self._ids = count()
        self._waiting: deque[StreamSegment] = deque()
        self._under_way: dict[int, StreamSegment] = {}
        # A heap, by the time of retransmission; the id keeps it from comparing segments.
        self._lost: list[tuple[float, int, StreamSegment]] = []

    def set(self, direction: Direction, timeout_s: float, now: float) -> None:
        """Change the link for segments that enter from now on."""
        self.advance(now)
        self.timeout_s = timeout_s
        self.path.set(_unbuffered(direction), self._now)
        self._room = _room(direction)
        self._fill(self._now)

    def send(self, segment: StreamSegment, now: float) -> None:
        self.advance(now)
        self._waiting.append(segment)
        self._fill(self._now)

    def next_event(self) -> float | None:
        """Return when to advance again; None while nothing is under way."""
        again = self._lost[0][0] if self._lost else None
        return min((when for when in (self.path.next_event(), again) if when is not None), default=None)

    def advance(self, now: float) -> None:
        """Run everything due by `now`, each event at its own time."""
        # Callers round by half a tick, so `now` may go back a little, which a Path does not allow.
        self._now = max(now, self._now)
        while (when := self.next_event()) is not None and when <= self._now:
            for packet in self.path.pop_ready(when):
                segment = self._under_way.pop(int.from_bytes(packet.data))
                segment.stream.arrived(segment, when)
            while self._lost and self._lost[0][0] <= when:
                self._waiting.appendleft(heapq.heappop(self._lost)[2])
            self._fill(when)

    def _fill(self, now: float) -> None:
        while self._waiting and len(self._under_way) < self._room:
            self._push(self._waiting.popleft(), now)

    def _push(self, segment: StreamSegment, now: float) -> None:
        number, lost = next(self._ids), self._num_lost
        self.path.push(Packet(number.to_bytes(_ID_BYTES), len(segment.data) + HEADER_BYTES), now)
        # A Path reports no single packet: one was lost if the counter has moved.
        if self._num_lost == lost:
            self._under_way[number] = segment
            return
        heapq.heappush(self._lost, (now + segment.timeout_s, number, segment))
        segment.timeout_s = min(MAX_TIMEOUT_S, 2 * segment.timeout_s)

    @property
    def _num_lost(self) -> int:
        stats = self.path.stats
        return stats.lost + stats.dropped_by_queue


def _unbuffered(direction: Direction) -> Direction:
    return replace(direction, queue_bytes=0, queue_ms=0.0, duplicate=0.0, corrupt=0.0)


def _room(direction: Direction) -> int:
    """Return how many packets may be under way; with a limit in bytes, the full ones that delay and buffer hold."""
    if direction.buffer_bytes is None:
        return direction.queue_packets
    delayed_bytes = direction.mean_delay_ms * direction.rate_bps / 8000
    return math.ceil((direction.buffer_bytes + delayed_bytes) / (SEGMENT_BYTES + HEADER_BYTES))


class ShapedStream:
    """The bytes of one connection in one direction. Empty data marks the end of the stream, as in sockets."""

    def __init__(self, shaper: Shaper, timeout_s: float | None = None) -> None:
        self._shaper = shaper
        self._timeout_s = timeout_s  # None: the shaper's
        self._num_pushed = 0
        self._num_ready = 0
        self._early: dict[int, bytes] = {}  # arrived before their predecessors
        self._ready: list[bytes] = []
        self._ready_at = 0.0
        self.pending_bytes = 0

    def push(self, data: bytes, now: float) -> None:
        """Send `data` at `now`, which must never go backwards."""
        self.pending_bytes += len(data)
        for start in range(0, max(1, len(data)), SEGMENT_BYTES):
            timeout_s = self._shaper.timeout_s if self._timeout_s is None else self._timeout_s
            segment = StreamSegment(self, self._num_pushed, data[start : start + SEGMENT_BYTES], timeout_s)
            self._num_pushed += 1
            self._shaper.send(segment, now)

    def arrived(self, segment: StreamSegment, now: float) -> None:
        """Take a segment that the shaper delivers."""
        self._early[segment.number] = segment.data
        if not self._ready:
            self._ready_at = now
        while (data := self._early.pop(self._num_ready, None)) is not None:
            self._ready.append(data)
            self._num_ready += 1

    def next_event(self) -> float | None:
        """Return when to poll again, maybe in the past; None while nothing of this stream is under way."""
        if self._ready:
            return self._ready_at
        return self._shaper.next_event() if self._num_ready < self._num_pushed else None

    def pop_ready(self, now: float) -> list[bytes]:
        """Return the segments that have arrived by `now`, in order."""
        self._shaper.advance(now)
        ready, self._ready = self._ready, []
        self.pending_bytes -= sum(map(len, ready))
        return ready
