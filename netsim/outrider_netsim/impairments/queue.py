"""The queue limit: a packet that finds too many before it is dropped (tail drop)."""

from __future__ import annotations

from collections.abc import Callable

from outrider_netsim.impairments.downstream import Downstream
from outrider_netsim.impairments.impairment import Impairment, Packet, ignore_drop


class Queue:
    """Allow at most `limit` packets behind it, whether they wait for rate, delay or a delivery opportunity.

    netem's `limit` counts the same way: with 50 ms of delay, a limit of 1000 packets carries at most 20,000 packets a
    second, however high the rate. A `limit` of None is none: the buffer before the rate has one instead.
    """

    def __init__(self, behind: Impairment, limit: int | None) -> None:
        self.dropped = 0
        self.on_drop: Callable[[Packet, float], None] = ignore_drop
        self.limit = limit
        self._downstream = Downstream(behind)
        self._behind = behind
        self._waiting = 0

    def push(self, packet: Packet, now: float) -> None:
        self._waiting -= self._downstream.bring_to(now)
        if self.limit is not None and self._waiting >= self.limit:
            self.dropped += 1
            self.on_drop(packet, now)
        else:
            self._waiting += 1
            self._behind.push(packet, now)

    def pop_ready(self, now: float) -> list[Packet]:
        self._waiting -= self._downstream.bring_to(now)
        return self._downstream.take()

    def next_event(self) -> float | None:
        return self._downstream.next_event()
