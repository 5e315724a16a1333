"""Outages: while the radio is gone, what is sent into it is lost."""

from __future__ import annotations

from collections.abc import Sequence

from outrider_netsim.impairments.impairment import Impairment
from outrider_netsim.impairments.packet import Packet
from outrider_netsim.profiles.outages import Outage, occurrences

NEVER = float("inf")


class Outages:
    """Drops what enters during a planned outage, or between `cut` and `restore`; what is under way still arrives.

    This is netem with a loss of 100 %, so that every engine does the same. Planned outages count from `started_at`, and
    one lasts from its start up to, but not including, its end. `cut` and `restore` do not touch them.
    """

    def __init__(self, behind: Impairment, planned: Sequence[Outage] = (), started_at: float = 0.0) -> None:
        self.dropped = 0
        self.is_cut = False
        self._behind = behind
        self.pop_ready = behind.pop_ready  # nothing waits here, so who asks is sent on
        self.next_event = behind.next_event
        self._planned = occurrences(planned)
        self._started_at = started_at
        self._start = self._end = -NEVER  # of the outage that is on, or comes next

    def is_out(self, now: float) -> bool:
        """Whether a packet that enters at `now` is dropped."""
        while self._end <= now:
            start, end = next(self._planned, (NEVER, NEVER))
            self._start, self._end = self._started_at + start, self._started_at + end
        return self.is_cut or self._start <= now

    def push(self, packet: Packet, now: float) -> None:
        if self.is_out(now):
            self.dropped += 1
        else:
            self._behind.push(packet, now)
