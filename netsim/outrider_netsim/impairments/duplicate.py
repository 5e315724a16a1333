"""Duplication: a share of packets enters twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from outrider_netsim.impairments.impairment import Impairment, Packet, ignore_drop


class Duplicate:
    """Send a copy right behind some packets, with a delay of its own. Every packet takes one draw."""

    def __init__(self, behind: Impairment, share: float, rng: random.Random) -> None:
        self.duplicated = 0
        self.on_copy: Callable[[Packet, float], None] = ignore_drop
        self.share = share  # of packets pushed from now on
        self._behind = behind
        self._draw = rng.random
        # Nothing waits here: callers reach the impairment behind directly.
        self.pop_ready = behind.pop_ready
        self.next_event = behind.next_event

    def push(self, packet: Packet, now: float) -> None:
        copy = replace(packet) if self._draw() < self.share else None
        self._behind.push(packet, now)
        if copy is not None:
            self.duplicated += 1
            self.on_copy(copy, now)
            self._behind.push(copy, now)
