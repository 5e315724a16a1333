"""Packet loss: independent, or in bursts."""

from __future__ import annotations

import random
from collections.abc import Callable

from outrider_netsim.impairments.impairment import Impairment, Packet, ignore_drop
from outrider_netsim.profiles.profile import Bursts


class Loss:
    """Drop packets as they enter; the others go on at once.

    Independent losses have probability `loss`. Bursts are a chain of two states that starts good and may change before
    each packet, which is then lost with its state's probability (Gilbert 1960, Elliott 1963). netem's `gemodel` takes
    the state before the change, the same law one packet later. Every packet takes one draw, or two with bursts.
    """

    def __init__(self, behind: Impairment, loss: float, bursts: Bursts | None, rng: random.Random) -> None:
        self.dropped = 0
        self.on_drop: Callable[[Packet, float], None] = ignore_drop
        self._behind = behind
        # Nothing waits here: callers reach the impairment behind directly, which saves two calls a packet.
        self.pop_ready = behind.pop_ready
        self.next_event = behind.next_event
        self._draw = rng.random
        self._loss = loss
        self._bursts = bursts
        self._is_bad = False

    def lead_to(self, behind: Impairment) -> None:
        """Send packets to `behind` from now on, which leads to where they went before."""
        self._behind = behind

    def set(self, loss: float, bursts: Bursts | None) -> None:
        """Change the loss of packets pushed from now on."""
        self._loss, self._bursts = loss, bursts

    def push(self, packet: Packet, now: float) -> None:
        if self._bursts is None:
            lost = self._draw() < self._loss
        else:
            lost = self._draw() < self._share_of_next_state(self._bursts)
        if lost:
            self.dropped += 1
            self.on_drop(packet, now)
        else:
            self._behind.push(packet, now)

    def _share_of_next_state(self, bursts: Bursts) -> float:
        changes = self._draw() < (bursts.r if self._is_bad else bursts.p)
        self._is_bad ^= changes
        return bursts.bad if self._is_bad else bursts.good
