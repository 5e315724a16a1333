"""Slots: packets leave only at multiples of a time, all that are ready together, as at the end of a radio's frame."""

from __future__ import annotations

import math

from outrider_netsim.impairments.impairment import InOrder, Packet

ROUNDING_S = 1e-7


class Slots:
    """Send packets on at the next multiple of `slot_s` after `started_at`; 0: at once.

    A packet that is ready at the very time of a slot leaves in it.
    """

    def __init__(self, behind: InOrder, slot_s: float, started_at: float) -> None:
        self.slot_s = slot_s  # for packets that come from now on
        self._behind = behind
        self._started_at = started_at
        self._latest = -math.inf
        # Packets wait behind, with the time of their slot.
        self.pop_ready = behind.pop_ready
        self.next_event = behind.next_event

    def push(self, packet: Packet, now: float) -> None:
        # Not before those in a longer slot that was changed.
        self._latest = max(self._latest, self._slot(now))
        self._behind.push(packet, self._latest)

    def earliest_exit(self, packet: Packet, now: float) -> float:
        return self._behind.earliest_exit(packet, max(self._latest, self._slot(now)))

    def _slot(self, now: float) -> float:
        if not self.slot_s:
            return now
        # Less a little, so that rounding never makes a packet wait for a whole slot more.
        number = math.ceil((now - self._started_at - ROUNDING_S) / self.slot_s)
        return max(now, self._started_at + number * self.slot_s)
