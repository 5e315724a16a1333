"""Outages: packets sent while the link is down are lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider_netsim.impairments.impairment import Impairment, ignore_drop
from outrider_netsim.impairments.packet import Packet
from outrider_netsim.profiles.outages import Outage, occurrences

NEVER = float("inf")


class Outages:
    """Drop packets that enter during a planned outage or while `is_cut`; packets under way still arrive.

    This is what netem does with a loss of 100 %, so all engines behave alike. Planned outages count from `started_at`;
    each lasts from its start up to, but not including, its end. Cutting by hand does not change them.
    """

    def __init__(self, behind: Impairment, planned: Sequence[Outage] = (), started_at: float = 0.0) -> None:
        self.dropped = 0
        self.on_drop: Callable[[Packet, float], None] = ignore_drop
        self.is_cut = False
        self._behind = behind
        # Nothing waits here: callers reach the impairment behind directly.
        self.pop_ready = behind.pop_ready
        self.next_event = behind.next_event
        self._planned = occurrences(planned)
        self._started_at = started_at
        self._start = self._end = -NEVER  # of the current or next outage

    def is_out(self, now: float) -> bool:
        """Return whether a packet that enters at `now` is dropped."""
        while self._end <= now:
            start, end = next(self._planned, (NEVER, NEVER))
            self._start, self._end = self._started_at + start, self._started_at + end
        return self.is_cut or self._start <= now

    def push(self, packet: Packet, now: float) -> None:
        if self.is_out(now):
            self.dropped += 1
            self.on_drop(packet, now)
        else:
            self._behind.push(packet, now)
