"""One direction of a link: the impairments in their order, made from a Direction, and what went through them.

    push -> [ outages ] -> [ loss ] -> [ queue's end ] -> [ delay + jitter ] -> [ rate ] -> [ opportunities ] -> pop
              drop them      drops      drops the tail    \\______ what waits here counts as in the queue _____/
            \\___________ a trace of conditions sets loss, delay and rate when a row's time has come __________/

The order is the kernel's. netem decides on entering: loss first, then its `limit`, then the delay; a rate limiter under
it (tbf as its child) gets packets when their delay is over, so the receiver never sees more than the rate, and packets
that overtook each other are sent in their new order. With `in_order` this is netem's own `rate`: there a packet leaves
at max(now + delay, when the one before it left) + size / rate, which is an in-order delay followed by one server. (That
rate never reorders, so an engine on netem takes it for `in_order`, and tbf otherwise.) The limit counts packets,
delayed ones included, and drops the newest. A lone packet takes delay + size / rate in either order of the two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider_netsim.impairments import (
    Changes,
    Delay,
    Exit,
    Impairment,
    Loss,
    Opportunities,
    Outages,
    Packet,
    Queue,
    Rate,
)
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Direction
from outrider_netsim.profiles.traces import Conditions, Deliveries


@dataclass(frozen=True, slots=True)
class PathStats:
    """Packets of one direction so far; in = out + lost + dropped_by_queue + dropped_by_outage + under way."""

    packets_in: int = 0
    packets_out: int = 0
    lost: int = 0
    dropped_by_queue: int = 0
    dropped_by_outage: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class LinkStats:
    """Both directions, and the connections that the client opened."""

    up: PathStats
    down: PathStats
    connections: int = 0


class Path:
    """One direction of a link, without clock or I/O: an impairment itself (see impairment.py for the rules).

    `now` is any clock's seconds; `started_at` says what it shows when the link starts, from where planned outages and
    traces count. The same seed and the same pushes give the same packets at the same times, whoever asks when.
    """

    def __init__(
        self, direction: Direction, seed: str | int, outages: Sequence[Outage] = (), *, started_at: float = 0.0
    ) -> None:
        self._packets_in = self._packets_out = self._bytes_in = self._bytes_out = 0
        self._started_at = started_at
        self._exit = Exit()
        self._opportunities: Opportunities | None = None  # there from the first trace of deliveries on
        self._rate = Rate(self._exit, direction.rate_bps)
        self._delay = Delay(self._rate, direction, random.Random(f"{seed}/delay"))
        self._queue = Queue(self._delay, direction.queue_packets)
        self._loss = Loss(self._queue, direction.loss, direction.bursts, random.Random(f"{seed}/loss"))
        self._outages = Outages(self._loss, outages, started_at)
        self._changes: Changes | None = None  # there from the first trace, or the first change by hand, on
        self._first: Impairment = self._outages
        if direction.trace is not None:
            self.set(direction, started_at)

    def push(self, packet: Packet, now: float) -> None:
        """`packet` enters at `now`, which never goes backwards, here and below."""
        self._packets_in += 1
        self._bytes_in += packet.size_bytes
        self._first.push(packet, now)

    def pop_ready(self, now: float) -> list[Packet]:
        """What has come out by `now`, in the order of coming out."""
        ready = self._first.pop_ready(now)
        for packet in ready:
            self._packets_out += 1
            self._bytes_out += packet.size_bytes
        return ready

    def next_event(self) -> float | None:
        """When to ask again; None while nothing is under way."""
        return self._first.next_event()

    def set(self, direction: Direction, now: float) -> None:
        """Change the link: the rate, or the trace in its place, also for what waits; the rest for what enters later."""
        if self._changes is None:
            self._first = self._changes = Changes(self._outages, self._started_at)
        trace = direction.trace
        conditions = trace if isinstance(trace, Conditions) else None
        self._changes.set(conditions, lambda row, when: self._apply(direction_in_row(direction, row), when), now)
        self._set_deliveries(trace if isinstance(trace, Deliveries) else None, now)

    def cut(self, now: float) -> None:
        """The radio is gone: what enters is dropped. What is under way still arrives."""
        self._outages.is_cut = True

    def restore(self, now: float) -> None:
        """The radio is back, but for planned outages."""
        self._outages.is_cut = False

    @property
    def is_cut(self) -> bool:
        """Whether it was cut by hand."""
        return self._outages.is_cut

    @property
    def dropped(self) -> int:
        """Packets that will not come out: lost, or dropped by the queue or an outage."""
        return self._loss.dropped + self._queue.dropped + self._outages.dropped

    @property
    def stats(self) -> PathStats:
        return PathStats(
            packets_in=self._packets_in,
            packets_out=self._packets_out,
            lost=self._loss.dropped,
            dropped_by_queue=self._queue.dropped,
            dropped_by_outage=self._outages.dropped,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
        )

    def _set_deliveries(self, trace: Deliveries | None, now: float) -> None:
        if self._opportunities is None and trace is not None:
            self._opportunities = Opportunities(self._exit, None, self._started_at)
            self._rate.lead_to(self._opportunities)
        if self._opportunities is not None:
            self._opportunities.set(trace, now)

    def _apply(self, direction: Direction, now: float) -> None:
        self._loss.set(direction.loss, direction.bursts)
        self._queue.limit = direction.queue_packets
        self._delay.set(direction)
        self._rate.set(0.0 if isinstance(direction.trace, Deliveries) else direction.rate_bps, now)


def direction_in_row(direction: Direction, row: int) -> Direction:
    """`direction` as it is while `row` of its trace of conditions holds."""
    trace = direction.trace
    if not isinstance(trace, Conditions):
        return direction
    if trace.delay_ms is not None:
        direction = replace(direction, delay_ms=trace.delay_ms[row])
    if trace.rate_bps is not None:
        direction = replace(direction, rate_bps=trace.rate_bps[row])
    if trace.loss is not None:
        direction = replace(direction, loss=trace.loss[row], bursts=None)
    return direction
