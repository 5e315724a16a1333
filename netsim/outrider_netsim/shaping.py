"""When the bytes of a flow arrive, without clock or sockets: `now` is an argument in seconds, chance a generator.

                     shared by all flows of one direction                each flow its own
    bytes -> segments -> [ rate: one queue, served in order ] -> [ + base + max(0, N) ] -> [ never overtake ] -> bytes

A segment is what one packet carries, and every packet draws its own delay. TCP hands bytes over in order, so a segment
waits for the slowest of those before it: a burst of n packets arrives after the largest of n draws, as it does over
netem, whose jitter reorders packets below TCP. What TCP does about reordering (needless retransmission) is not here.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from outrider_netsim.profile import Direction

SEGMENT_BYTES = 1448  # payload of a full packet on Ethernet: 1500 less IPv4 and TCP headers with timestamps
HEADER_BYTES = 66  # Ethernet, IPv4 and TCP headers count against the rate, as they do in the kernel's shapers


class Shaper:
    """Delay, jitter and rate of one direction; assign `direction` to change them for what is pushed from then on."""

    def __init__(self, direction: Direction, rng: random.Random) -> None:
        self.direction = direction
        self._rng = rng
        self._rate_free_at = 0.0

    def arrival(self, size_bytes: int, now: float) -> float:
        """When a packet with `size_bytes` of payload, sent at `now`, comes out; takes its turn in the rate's queue."""
        sent_at = max(now, self._rate_free_at)
        if self.direction.rate_bps:
            sent_at += (size_bytes + HEADER_BYTES) * 8 / self.direction.rate_bps
        self._rate_free_at = sent_at
        return sent_at + self._delay_ms() / 1000

    def _delay_ms(self) -> float:
        d = self.direction
        shaped = max(0.0, self._rng.gauss(d.delay_ms, d.jitter_ms)) if d.distribution == "normal" else d.delay_ms
        return d.base_ms + shaped


@dataclass(frozen=True, slots=True)
class _Segment:
    data: bytes
    arrives_at: float


class Flow:
    """The bytes of one connection under way in one direction. Empty data marks the end of the stream, as in sockets."""

    def __init__(self, shaper: Shaper) -> None:
        self._shaper = shaper
        self._segments: deque[_Segment] = deque()
        self._last_arrival = 0.0
        self.pending_bytes = 0

    def push(self, data: bytes, now: float) -> None:
        """Send `data` at `now`, which must not go backwards."""
        self.pending_bytes += len(data)
        for start in range(0, max(1, len(data)), SEGMENT_BYTES):
            segment = data[start : start + SEGMENT_BYTES]
            self._last_arrival = max(self._last_arrival, self._shaper.arrival(len(segment), now))
            self._segments.append(_Segment(segment, self._last_arrival))

    def next_event(self) -> float | None:
        """When the next segment arrives; None while nothing is under way."""
        return self._segments[0].arrives_at if self._segments else None

    def pop_ready(self, now: float) -> list[bytes]:
        """The segments that have arrived by `now`, in order."""
        ready = []
        while self._segments and self._segments[0].arrives_at <= now:
            ready.append(self._segments.popleft().data)
        self.pending_bytes -= sum(map(len, ready))
        return ready
