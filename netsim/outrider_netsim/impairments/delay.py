"""Delay and jitter: each packet draws its own delay."""

from __future__ import annotations

import heapq
import random

from outrider_netsim.impairments.impairment import InOrder
from outrider_netsim.impairments.packet import Packet
from outrider_netsim.profiles.profile import Direction


class Delay:
    """Send each packet on after a draw of `direction.delay_s`.

    Without `in_order` a packet with a short draw overtakes (netem's jitter); with it, it waits for the one before it (a
    radio bearer). Packets due at the same moment keep their order.
    """

    def __init__(self, behind: InOrder, direction: Direction, rng: random.Random) -> None:
        self._behind = behind
        self._direction = direction
        self._rng = rng
        # A heap. The counter keeps packets due at one time in order, and the heap from comparing packets.
        self._under_way: list[tuple[float, int, Packet]] = []
        self._entered = 0
        self._latest = 0.0

    def set(self, direction: Direction) -> None:
        """Change the delay of packets pushed from now on."""
        self._direction = direction

    def push(self, packet: Packet, now: float) -> None:
        due = now + self._direction.delay_s(self._rng)
        if due > self._latest:
            self._latest = due
        elif self._direction.in_order:
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
