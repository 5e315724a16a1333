"""Delay and jitter: each packet draws its own delay, independently or correlated with the one before.

Correlated delays are a Gaussian copula: z' = c z + sqrt(1 - c^2) n with n from N(0, 1) is again from N(0, 1), and the
delay is the profile's quantile at Phi(z'). So every single delay has exactly the profile's distribution, whatever c is.
With c = exp(-t / coherence) for packets t apart, z is an Ornstein-Uhlenbeck process, seen when packets pass.
"""

from __future__ import annotations

import heapq
import math
import random
from statistics import NormalDist

from outrider_netsim.impairments.impairment import InOrder, Packet
from outrider_netsim.profiles.profile import Direction

_NORMAL = NormalDist()


class DelayDraws:
    """Draws delays, one after the other."""

    def __init__(self, direction: Direction, rng: random.Random) -> None:
        self._rng = rng
        self._z: float | None = None
        self._drawn_at = 0.0
        self.set(direction)

    def set(self, direction: Direction) -> None:
        """Change the distribution and correlation of later draws; they stay correlated with those before."""
        self._direction = direction
        self.is_correlated = bool(direction.jitter_ms and (direction.correlation or direction.coherence_ms))

    def draw_s(self, now: float) -> float:
        """Return the delay in seconds of a packet at `now`, which never goes backwards."""
        if not self.is_correlated:
            return self._direction.delay_s(self._rng)
        fresh = _NORMAL.inv_cdf(min(1 - self._rng.random(), 1 - 2**-53))
        if self._z is None:
            self._z = fresh
        else:
            c = self._correlation(now - self._drawn_at)
            self._z = c * self._z + math.sqrt(1 - c * c) * fresh
        self._drawn_at = now
        return self._direction.quantile_s(_NORMAL.cdf(self._z))

    def _correlation(self, elapsed_s: float) -> float:
        coherence_ms = self._direction.coherence_ms
        return math.exp(-1000 * elapsed_s / coherence_ms) if coherence_ms else self._direction.correlation


class Delay:
    """Send each packet on after a delay of its own.

    Without `in_order` a packet with a short draw overtakes (netem's jitter); with it, it waits for the one before it (a
    radio bearer). Packets due at the same moment keep their order.
    """

    def __init__(self, behind: InOrder, direction: Direction, rng: random.Random) -> None:
        self._behind = behind
        self._in_order = direction.in_order
        self._draws = DelayDraws(direction, rng)
        # A heap. The counter keeps packets due at one time in order, and the heap from comparing packets.
        self._under_way: list[tuple[float, int, Packet]] = []
        self._entered = 0
        self._latest = 0.0

    def set(self, direction: Direction) -> None:
        """Change the delay of packets pushed from now on."""
        self._in_order = direction.in_order
        self._draws.set(direction)

    def push(self, packet: Packet, now: float) -> None:
        due = now + self._draws.draw_s(now)
        if due > self._latest:
            self._latest = due
        elif self._in_order:
            due = self._latest
        self._entered += 1
        heapq.heappush(self._under_way, (due, self._entered, packet))

    def pop_ready(self, now: float) -> list[Packet]:
        under_way = self._under_way
        while under_way and under_way[0][0] <= now:
            due, _, packet = heapq.heappop(under_way)
            self._behind.push(packet, due)
        return self._behind.pop_ready(now)

    def next_event(self) -> float | None:
        later = self._behind.next_event()
        if later is not None or not self._under_way:
            # What is behind comes out first: `_behind` is in order, so no packet that is still delayed overtakes it.
            return later
        due, _, packet = self._under_way[0]
        return self._behind.earliest_exit(packet, due)
