"""How the bytes of TCP connections ride on a Path, without clock or sockets: `now` is an argument in seconds.

    flow -> segments --+                                        +-- in order -> flow
                       +-> [ wait for room ] -> [ the Path ] -->+
    flow -> segments --+       ^                     | lost     +-- in order -> flow
                               +--- [ timeout ] <----+

A segment is what one packet carries. TCP hands bytes over in order, so a segment waits for those before it: a burst of
n packets arrives after the largest of n delays, as it does over netem, whose jitter reorders packets below TCP.

A relay may not lose bytes, so **a lost packet is a stall**: it is sent again one retransmission timeout after it was
sent, with a new chance of being lost and then twice the timeout, while what is behind it arrives and waits. The timeout
is mean round trip + 4 deviations, at least 200 ms (RFC 6298 with Linux's TCP_RTO_MIN), and 1 s in the handshake. What
TCP does besides is not here: fast retransmission, which mends a loss amid a long transfer sooner; needless
retransmission when packets are reordered; and congestion control, so no loss makes a transfer slower for good. Nor
does the Path's queue overflow: what it has no room for waits here.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from itertools import count

from outrider_netsim.impairments import ETHERNET_BYTES, Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.profiles.profile import Direction, Profile

SEGMENT_BYTES = 1448  # payload of a full packet on Ethernet: 1500 less IPv4 and TCP headers with timestamps
HEADER_BYTES = 52 + ETHERNET_BYTES  # what else of a packet counts for the rate
MIN_TIMEOUT_S = 0.2
HANDSHAKE_TIMEOUT_S = 1.0  # before a round trip has been measured
MAX_TIMEOUT_S = 120.0
_ID_BYTES = 8


def timeout_s(profile: Profile) -> float:
    """When a lost packet is sent again the first time, counted from its sending."""
    deviation_ms = math.hypot(profile.up.delay_deviation_ms, profile.down.delay_deviation_ms)
    return min(MAX_TIMEOUT_S, max(MIN_TIMEOUT_S, (profile.round_trip_ms + 4 * deviation_ms) / 1000))


@dataclass(slots=True, eq=False)
class StreamSegment:
    """A piece of a flow, the `number`-th, and how long until it is sent again should it get lost."""

    flow: ShapedStream
    number: int
    data: bytes
    timeout_s: float


class Shaper:
    """One direction of a link, shared by its flows."""

    def __init__(self, direction: Direction, seed: str, timeout_s: float = MIN_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self.path = Path(direction, seed)
        self._now = 0.0
        self._room = direction.queue_packets
        self._ids = count()
        self._waiting: deque[StreamSegment] = deque()
        self._under_way: dict[int, StreamSegment] = {}
        self._lost: list[tuple[float, int, StreamSegment]] = []  # a heap, by when it is sent again

    def set(self, direction: Direction, timeout_s: float, now: float) -> None:
        """Change the link for what enters it from now on."""
        self.advance(now)
        self.timeout_s = timeout_s
        self.path.set(direction, self._now)
        self._room = direction.queue_packets
        self._fill(self._now)

    def send(self, segment: StreamSegment, now: float) -> None:
        self.advance(now)
        self._waiting.append(segment)
        self._fill(self._now)

    def next_event(self) -> float | None:
        """When to advance again; None while nothing is under way."""
        again = self._lost[0][0] if self._lost else None
        return min((when for when in (self.path.next_event(), again) if when is not None), default=None)

    def advance(self, now: float) -> None:
        """Let everything happen that is due by `now`, each at its own time."""
        self._now = max(now, self._now)  # callers round by half a tick, and a Path takes no earlier time than before
        while (when := self.next_event()) is not None and when <= self._now:
            for packet in self.path.pop_ready(when):
                segment = self._under_way.pop(int.from_bytes(packet.data))
                segment.flow.arrived(segment, when)
            while self._lost and self._lost[0][0] <= when:
                self._waiting.appendleft(heapq.heappop(self._lost)[2])
            self._fill(when)

    def _fill(self, now: float) -> None:
        while self._waiting and len(self._under_way) < self._room:
            self._push(self._waiting.popleft(), now)

    def _push(self, segment: StreamSegment, now: float) -> None:
        number, lost = next(self._ids), self._num_lost
        self.path.push(Packet(number.to_bytes(_ID_BYTES), len(segment.data) + HEADER_BYTES), now)
        if self._num_lost == lost:
            self._under_way[number] = segment
            return
        heapq.heappush(self._lost, (now + segment.timeout_s, number, segment))
        segment.timeout_s = min(MAX_TIMEOUT_S, 2 * segment.timeout_s)

    @property
    def _num_lost(self) -> int:
        stats = self.path.stats
        return stats.lost + stats.dropped_by_queue


class ShapedStream:
    """The bytes of one connection under way in one direction. Empty data marks the end of the stream, as in sockets."""

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
        """Send `data` at `now`, which must not go backwards."""
        self.pending_bytes += len(data)
        for start in range(0, max(1, len(data)), SEGMENT_BYTES):
            timeout_s = self._shaper.timeout_s if self._timeout_s is None else self._timeout_s
            segment = StreamSegment(self, self._num_pushed, data[start : start + SEGMENT_BYTES], timeout_s)
            self._num_pushed += 1
            self._shaper.send(segment, now)

    def arrived(self, segment: StreamSegment, now: float) -> None:
        """The shaper brings this segment."""
        self._early[segment.number] = segment.data
        if not self._ready:
            self._ready_at = now
        while (data := self._early.pop(self._num_ready, None)) is not None:
            self._ready.append(data)
            self._num_ready += 1

    def next_event(self) -> float | None:
        """When to ask again, which may be in the past; None while nothing of this flow is under way."""
        if self._ready:
            return self._ready_at
        return self._shaper.next_event() if self._num_ready < self._num_pushed else None

    def pop_ready(self, now: float) -> list[bytes]:
        """The segments that have arrived by `now`, in order."""
        self._shaper.advance(now)
        ready, self._ready = self._ready, []
        self.pending_bytes -= sum(map(len, ready))
        return ready
