"""Corruption: one bit of a share of packets is flipped."""

from __future__ import annotations

import random

from outrider_netsim.impairments.impairment import Impairment, Packet


class Corrupt:
    """Flip a bit of some packets anywhere in their data, and mark them. Every packet takes one draw."""

    def __init__(self, behind: Impairment, share: float, rng: random.Random) -> None:
        self.corrupted = 0
        self.share = share  # of packets pushed from now on
        self._behind = behind
        self._rng = rng
        # Nothing waits here: callers reach the impairment behind directly.
        self.pop_ready = behind.pop_ready
        self.next_event = behind.next_event

    def push(self, packet: Packet, now: float) -> None:
        if self._rng.random() < self.share:
            self.corrupted += 1
            packet.is_corrupt = True
            if packet.data:
                data, bit = bytearray(packet.data), self._rng.randrange(8 * len(packet.data))
                data[bit // 8] ^= 1 << bit % 8
                packet.data = bytes(data)
        self._behind.push(packet, now)
