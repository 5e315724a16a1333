"""Outages: packets sent while the link is down are lost, or held until it is up again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from outrider_netsim.impairments.impairment import Impairment, Packet, ignore_drop
from outrider_netsim.profiles.outages import Outage, occurrences

NEVER = float("inf")


class Outages:
    """Drop packets that enter during a planned outage or while `is_cut`; packets under way still arrive.

    This is what netem does with a loss of 100 %, so all engines behave alike. Planned outages count from `started_at`;
    each lasts from its start up to, but not including, its end. Cutting by hand does not change them. Planned outages
    that hold packets are not for here: Rate and DeliveryOpportunities send nothing meanwhile (Holds).
    """

    def __init__(self, behind: Impairment, planned: Sequence[Outage] = (), started_at: float = 0.0) -> None:
        self.dropped = 0
        self.on_drop: Callable[[Packet, float], None] = ignore_drop
        self.is_cut = False
        self._behind = behind
        # Nothing waits here: callers reach the impairment behind directly.
        self.pop_ready = behind.pop_ready
        self.next_event = behind.next_event
        self._planned = occurrences([outage for outage in planned if not outage.hold])
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


class Holds:
    """The planned times in which a link sends nothing and loses nothing: handovers that forward their packets.

    Times asked about must never go backwards.
    """

    def __init__(self, planned: Sequence[Outage] = (), started_at: float = 0.0) -> None:
        self._coming = occurrences([outage for outage in planned if outage.hold])
        self._started_at = started_at
        self._known: deque[tuple[float, float]] = deque()  # start and end; those that ended before the last question go

    def end(self, begin: float, seconds: float) -> float:
        """Return when `seconds` of sending are over that start at `begin`; a hold interrupts them.

        What ends at the very start of a hold is out, and what would start there waits.
        """
        self._forget_before(begin)
        at, n = begin, 0
        while at + seconds > self._window(n)[0] or at >= self._window(n)[0]:
            start, end = self._window(n)
            seconds -= max(0.0, start - at)
            at = max(at, end)
            n += 1
        return at + max(0.0, seconds)

    def sending_s(self, begin: float, end: float) -> float:
        """Return how many seconds between two times are outside of all holds."""
        self._forget_before(begin)
        held, n = 0.0, 0
        while self._window(n)[0] < end:
            start, stop = self._window(n)
            held += min(stop, end) - max(start, begin)
            n += 1
        return end - begin - held

    def _forget_before(self, now: float) -> None:
        while self._window(0)[1] <= now:
            self._known.popleft()

    def _window(self, n: int) -> tuple[float, float]:
        while len(self._known) <= n:
            start, end = next(self._coming, (NEVER, NEVER))
            self._known.append((self._started_at + start, self._started_at + end))
        return self._known[n]
