"""One direction of a link: the impairments in their order, built from a Direction, and their counters.

    push -> [ outages ] -> [ loss ] -> [ queue's end ] -> [ delay + jitter ] -> [ rate ] -> [ opportunities ] -> pop
              drop them      drops      drops the tail    \\______ what waits here counts as in the queue _____/
                                                                            nothing leaves these two during a hold
            \\___________ a trace of conditions sets loss, delay and rate when a row's time has come __________/

Where a direction has them: duplication and corruption follow loss, so that each copy has its own luck from there on,
and slots follow the opportunities. A limit in bytes is that of a buffer before the rate, or before the opportunities.

The order is the kernel's. netem decides when a packet enters: loss first, then its `limit`, then the delay. A rate
limiter behind it (tbf) gets packets when their delay is over, so the receiver never sees more than the rate, and
packets that overtook each other are sent in their new order. With `in_order` this is netem's own `rate`: a packet
leaves at max(now + delay, when the one before it left) + size / rate, an in-order delay followed by one server. (That
rate never reorders, so the kernel engine uses it for `in_order`, and tbf otherwise.) The limit counts packets, delayed
ones included, and drops the newest. A lone packet takes delay + size / rate in either order of the two.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from outrider_netsim.core.errors import EngineError
from outrider_netsim.impairments.buffer import Buffer
from outrider_netsim.impairments.corrupt import Corrupt
from outrider_netsim.impairments.delay import Delay
from outrider_netsim.impairments.duplicate import Duplicate
from outrider_netsim.impairments.impairment import DropReason, Impairment, Packet, PacketObserver, ignore_drop
from outrider_netsim.impairments.loss import Loss
from outrider_netsim.impairments.outage import Holds, Outages
from outrider_netsim.impairments.queue import Queue
from outrider_netsim.impairments.rate import Rate
from outrider_netsim.impairments.sink import Sink
from outrider_netsim.impairments.slots import Slots
from outrider_netsim.impairments.trace import ConditionChanges, DeliveryOpportunities
from outrider_netsim.profiles.outages import Outage
from outrider_netsim.profiles.profile import Direction
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace


@dataclass(frozen=True, slots=True)
class PathStats:
    """Counters of one direction; in + duplicated = out + lost + dropped_by_queue + dropped_by_outage + under way.

    Corrupted packets come out like others.
    """

    packets_in: int = 0
    packets_out: int = 0
    lost: int = 0
    dropped_by_queue: int = 0
    dropped_by_outage: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    duplicated: int = 0
    corrupted: int = 0


@dataclass(frozen=True, slots=True)
class LinkStats:
    """Counters of both directions, and of the connections that clients opened."""

    up: PathStats
    down: PathStats
    connections: int = 0


class Path:
    """One direction of a link, without clock or I/O; itself an impairment (rules in impairment.py).

    `now` is in seconds of any clock; planned outages and traces count from `started_at`. The same seed and the same
    pushes give the same packets at the same times, however often it is polled.
    """

    def __init__(
        self, direction: Direction, seed: str | int, outages: Sequence[Outage] = (), *, started_at: float = 0.0
    ) -> None:
        self._packets_in = self._packets_out = self._bytes_in = self._bytes_out = 0
        self._started_at = started_at
        self._sink = Sink()
        self._opportunities: DeliveryOpportunities | None = None  # from the first delivery trace on
        self._held = [outage for outage in outages if outage.hold]
        self._rate = Rate(self._sink, direction.rate_bps, self._holds())
        # A generator for each: with a shared one, a change of the loss would shift all delays. Seeded with text, which
        # gives the same numbers on every platform.
        self._delay = Delay(self._rate, direction, random.Random(f"{seed}/delay"))
        self._queue = Queue(self._delay, None)
        self._loss = Loss(self._queue, direction.loss, direction.bursts, random.Random(f"{seed}/loss"))
        self.outages = Outages(self._loss, outages, started_at)  # where it is cut by hand
        self._changes: ConditionChanges | None = None  # from the first trace or `set` on
        self._first: Impairment = self.outages
        self._seed = seed
        self._duplicate: Duplicate | None = None  # these three from their first use on
        self._corrupt: Corrupt | None = None
        self._slots: Slots | None = None
        self._observer: PacketObserver | None = None
        if direction.trace is not None:
            self.set(direction, started_at)
        else:
            self._limit_queue(direction)
            self._set_rarer(direction)

    def push(self, packet: Packet, now: float) -> None:
        """Let `packet` enter at `now`, which must never go backwards, in any method."""
        self._packets_in += 1
        self._bytes_in += packet.size_bytes
        if self._observer is not None:
            self._observer.entered(packet, now)
        self._first.push(packet, now)

    def pop_ready(self, now: float) -> list[Packet]:
        """Return the packets that have come out by `now`, in order."""
        ready = self._first.pop_ready(now)
        for packet in ready:
            self._packets_out += 1
            self._bytes_out += packet.size_bytes
            if self._observer is not None:
                self._observer.left(packet, now)
        return ready

    def next_event(self) -> float | None:
        """Return when to poll again; None while nothing is under way."""
        return self._first.next_event()

    def set(self, direction: Direction, now: float) -> None:
        """Change the link: rate and delivery trace also for waiting packets, the rest for those that enter later."""
        if self._changes is None:
            self._first = self._changes = ConditionChanges(self.outages, self._started_at)
        trace = direction.trace
        conditions = trace if isinstance(trace, ConditionTrace) else None
        self._changes.set(conditions, lambda row, when: self._apply(direction_in_row(direction, row), when), now)
        self._set_deliveries(trace if isinstance(trace, DeliveryTrace) else None, now)

    def observe(self, observer: PacketObserver | None) -> None:
        """Tell `observer` of every packet from now on, and the one before it of none."""
        self._observer = observer
        self.outages.on_drop = _reporter(observer, "outage")
        self._loss.on_drop = _reporter(observer, "lost")
        self._queue.on_drop = _reporter(observer, "queue")
        for buffer in self._buffers:
            buffer.on_drop = self._queue.on_drop
        self._tell_of_copies()

    @property
    def stats(self) -> PathStats:
        return PathStats(
            packets_in=self._packets_in,
            packets_out=self._packets_out,
            lost=self._loss.dropped,
            dropped_by_queue=self._queue.dropped + sum(buffer.dropped for buffer in self._buffers),
            dropped_by_outage=self.outages.dropped,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            duplicated=self._duplicate.duplicated if self._duplicate else 0,
            corrupted=self._corrupt.corrupted if self._corrupt else 0,
        )

    def _set_deliveries(self, trace: DeliveryTrace | None, now: float) -> None:
        if self._opportunities is None and trace is not None:
            self._opportunities = DeliveryOpportunities(self._slots or self._sink, self._started_at, self._holds())
            self._opportunities.buffer.on_drop = self._queue.on_drop
            self._opportunities.buffer.set(self._rate.buffer.limit_bytes, codel=self._rate.buffer.has_codel)
            self._rate.lead_to(self._opportunities)
        if self._opportunities is not None:
            self._opportunities.set(trace, now)

    def _holds(self) -> Holds | None:
        # One for each of its users, as none may ask about an earlier time than before.
        return Holds(self._held, self._started_at) if self._held else None

    def _set_rarer(self, direction: Direction) -> None:
        """Change what most links lack, and put it into the path where it is used for the first time."""
        if (direction.duplicate or direction.corrupt) and (self._duplicate is None or self._corrupt is None):
            self._corrupt = Corrupt(self._queue, 0.0, random.Random(f"{self._seed}/corrupt"))
            self._duplicate = Duplicate(self._corrupt, 0.0, random.Random(f"{self._seed}/duplicate"))
            self._loss.lead_to(self._duplicate)
            self._tell_of_copies()
        if self._duplicate is not None and self._corrupt is not None:
            self._duplicate.share, self._corrupt.share = direction.duplicate, direction.corrupt
        if direction.slot_ms and self._slots is None:
            self._slots = Slots(self._sink, 0.0, self._started_at)
            (self._opportunities or self._rate).lead_to(self._slots)
        if self._slots is not None:
            self._slots.slot_s = direction.slot_ms / 1000

    def _tell_of_copies(self) -> None:
        if self._duplicate is not None:
            self._duplicate.on_copy = ignore_drop if self._observer is None else self._observer.copied

    @property
    def _buffers(self) -> list[Buffer]:
        """Return those in which packets may wait for the rate or an opportunity."""
        return [self._rate.buffer] if self._opportunities is None else [self._rate.buffer, self._opportunities.buffer]

    def _limit_queue(self, direction: Direction) -> None:
        check_aqm(direction)
        limit_bytes = direction.buffer_bytes
        self._queue.limit = direction.queue_packets if limit_bytes is None else None
        for buffer in self._buffers:
            buffer.set(limit_bytes, codel=direction.aqm == "codel")

    def _apply(self, direction: Direction, now: float) -> None:
        self._loss.set(direction.loss, direction.bursts)
        self._limit_queue(direction)
        self._set_rarer(direction)
        self._delay.set(direction)
        self._rate.set(0.0 if isinstance(direction.trace, DeliveryTrace) else direction.rate_bps, now)


def _reporter(observer: PacketObserver | None, reason: DropReason) -> Callable[[Packet, float], None]:
    return partial(observer.dropped, reason=reason) if observer else ignore_drop


def check_aqm(direction: Direction) -> None:
    """Raise EngineError for a queue that tells flows apart, which a Path does not."""
    if direction.aqm == "fq_codel":
        raise EngineError("aqm='fq_codel': flows are told apart by the kernel alone; use --engine kernel, or codel")


def direction_in_row(direction: Direction, row: int) -> Direction:
    """Return `direction` as it is while `row` of its condition trace holds."""
    trace = direction.trace
    if not isinstance(trace, ConditionTrace):
        return direction
    if trace.delay_ms is not None:
        direction = replace(direction, delay_ms=trace.delay_ms[row])
    if trace.rate_bps is not None:
        direction = replace(direction, rate_bps=trace.rate_bps[row])
    if trace.loss is not None:
        direction = replace(direction, loss=trace.loss[row], bursts=None)
    return direction
