"""Links that follow a recorded trace: when packets may leave, or how delay, rate and loss change over time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from outrider_netsim.impairments.buffer import Buffer
from outrider_netsim.impairments.downstream import Downstream
from outrider_netsim.impairments.impairment import ETHERNET_BYTES, Impairment, InOrder, Packet, earlier
from outrider_netsim.impairments.outage import Holds
from outrider_netsim.profiles.traces import OPPORTUNITY_BYTES, ConditionTrace, DeliveryTrace

TUN_BYTES = 4  # Mahimahi counts an IP packet with the header of its TUN device, so that 1500 + 4 fill one opportunity


class RepeatingTimes:
    """Repeating times: `offsets` (sorted, from 0 on, in 1/`per_s`) after `started_at`, and again every `period_s`."""

    def __init__(self, offsets: Sequence[float], period_s: float, started_at: float, per_s: int = 1) -> None:
        self._offsets = offsets
        self._per_s = per_s
        self._period_s = period_s
        self._started_at = started_at

    def time(self, n: int) -> float:
        """Return the n-th time, counted from 0 over all rounds."""
        rounds, index = divmod(n, len(self._offsets))
        return self._started_at + (rounds * self._period_s + self._offsets[index] / self._per_s)

    def first_after(self, now: float) -> int:
        """Return the index of the first time later than `now`."""
        rounds, offset_s = divmod(max(0.0, now - self._started_at), self._period_s)
        n = int(rounds) * len(self._offsets) + bisect_right(self._offsets, offset_s * self._per_s)
        # divmod of floats may round into the neighboring entry, on either side.
        while n > 0 and self.time(n - 1) > now:
            n -= 1
        while self.time(n) <= now:
            n += 1
        return n


class DeliveryOpportunities:
    """Send packets on when a trace lets them: each opportunity takes 1504 waiting bytes, in order.

    A packet may need several, and several packets may share one; an opportunity that finds none waiting is lost. A
    packet that enters at the very time of an opportunity waits for the next one, as in Mahimahi's link shell. Without
    a trace, packets pass at once. Opportunities during `holds` are lost.
    """

    def __init__(self, behind: InOrder, started_at: float = 0.0, holds: Holds | None = None) -> None:
        self._behind = behind
        self._holds = holds
        self._started_at = started_at
        self.buffer = Buffer()
        self._sending: Packet | None = None
        self._left_bytes = 0  # of the packet being sent
        self._next = 0
        self._timetable: RepeatingTimes | None = None

    def set(self, trace: DeliveryTrace | None, now: float) -> None:
        """Change the trace from `now` on, also for waiting packets. Packets due by `now` must have been popped."""
        if trace is not None:
            self._timetable = RepeatingTimes(trace.at_ms, trace.period_ms / 1000, self._started_at, per_s=1000)
            self._next = self._timetable.first_after(now)
            return
        self._timetable = None
        while (packet := self._take(now)) is not None:
            self._behind.push(packet, now)
            self._sending = None

    def lead_to(self, behind: InOrder) -> None:
        """Send packets to `behind` from now on; the end of the link must stay the same."""
        self._behind = behind

    def push(self, packet: Packet, now: float) -> None:
        if self._timetable is None:
            self._behind.push(packet, now)
            return
        self._serve(self._timetable, now)
        if not self._is_busy:
            self._next = self._timetable.first_after(now)
        self.buffer.push(packet, now)

    def pop_ready(self, now: float) -> list[Packet]:
        if self._timetable is not None:
            self._serve(self._timetable, now)
        return self._behind.pop_ready(now)

    def next_event(self) -> float | None:
        later = self._behind.next_event()
        if self._timetable is None or not self._is_busy:
            return later
        return earlier(self._timetable.time(self._next), later)

    def earliest_exit(self, packet: Packet, now: float) -> float:
        # A lower bound: the next opportunity may come much later.
        return self._behind.earliest_exit(packet, now)

    def _serve(self, timetable: RepeatingTimes, now: float) -> None:
        while self._is_busy and (when := timetable.time(self._next)) <= now:
            self._next += 1
            if self._holds is None or self._holds.end(when, 0) == when:
                self._use(OPPORTUNITY_BYTES, when)

    def _use(self, room_bytes: int, when: float) -> None:
        while room_bytes > 0 and (packet := self._take(when)) is not None:
            used = min(room_bytes, self._left_bytes)
            room_bytes -= used
            self._left_bytes -= used
            if not self._left_bytes:
                self._behind.push(packet, when)
                self._sending = None

    @property
    def _is_busy(self) -> bool:
        return self._sending is not None or bool(self.buffer)

    def _take(self, now: float) -> Packet | None:
        """Return the packet being sent, the next one from the buffer if there is none."""
        if self._sending is None and (packet := self.buffer.pop(now)) is not None:
            self._sending, self._left_bytes = packet, _counted_bytes(packet)
        return self._sending


def _counted_bytes(packet: Packet) -> int:
    return max(1, packet.size_bytes - ETHERNET_BYTES + TUN_BYTES)


Apply = Callable[[int, float], None]


def _no_change(row: int, now: float) -> None:
    """Apply nothing, before any trace is set."""


class ConditionChanges:
    """Call `apply(row, when)` for each row of a condition trace at its time, after everything due before it.

    It is the outermost impairment: `apply` changes those behind it. Without a trace, it calls nothing.
    """

    def __init__(self, behind: Impairment, started_at: float = 0.0) -> None:
        self._behind = behind
        self._downstream = Downstream(behind)
        self._started_at = started_at
        self._timetable: RepeatingTimes | None = None
        self._rows = 0
        self._next = 0
        self._apply: Apply = _no_change

    def set(self, trace: ConditionTrace | None, apply: Apply, now: float) -> None:
        """Follow `trace` from `now` on, beginning with its current row. Without a trace, apply row 0 once."""
        self._follow(now)
        self._downstream.bring_to(now)
        self._apply = apply
        if trace is None:
            self._timetable = None
            apply(0, now)
        else:
            self._rows = len(trace.times_s)
            self._timetable = RepeatingTimes(trace.times_s, trace.period_s, self._started_at)
            self._jump(self._timetable, now)

    def push(self, packet: Packet, now: float) -> None:
        self._follow(now)
        self._behind.push(packet, now)

    def pop_ready(self, now: float) -> list[Packet]:
        self._follow(now)
        self._downstream.bring_to(now)
        return self._downstream.take()

    def next_event(self) -> float | None:
        event = self._downstream.next_event()
        if event is None or self._timetable is None:
            return event
        return earlier(self._timetable.time(self._next), event)

    def _follow(self, now: float) -> None:
        timetable = self._timetable
        if timetable is None or timetable.time(self._next) > now:
            return
        while (when := timetable.time(self._next)) <= now and self._behind.next_event() is not None:
            self._downstream.bring_to(when)
            self._apply(self._next % self._rows, when)
            self._next += 1
        # Nothing is under way, so skipped rows make no difference; after a long pause there may be millions of them.
        if when <= now:
            self._jump(timetable, now)

    def _jump(self, timetable: RepeatingTimes, now: float) -> None:
        self._next = timetable.first_after(now)
        self._apply(max(0, self._next - 1) % self._rows, now)
