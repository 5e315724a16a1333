"""The queue's end: a packet that finds too many before it is dropped (tail drop)."""

from __future__ import annotations

from outrider_netsim.impairments.downstream import Held
from outrider_netsim.impairments.impairment import Impairment
from outrider_netsim.impairments.packet import Packet


class Queue:
    """Lets at most `limit` packets be behind it, whatever they wait for: rate, delay, or an opportunity to leave.

    netem's `limit` counts so too: over a link with 50 ms of delay, 1000 packets of limit carry no more than 20,000
    packets a second, however high its rate.
    """

    def __init__(self, behind: Impairment, limit: int) -> None:
        self.dropped = 0
        self.limit = limit
        self._held = Held(behind)
        self._behind = behind
        self._waiting = 0

    def push(self, packet: Packet, now: float) -> None:
        self._waiting -= self._held.bring_to(now)
        if self._waiting >= self.limit:
            self.dropped += 1
        else:
            self._waiting += 1
            self._behind.push(packet, now)

    def pop_ready(self, now: float) -> list[Packet]:
        self._waiting -= self._held.bring_to(now)
        return self._held.take()

    def next_event(self) -> float | None:
        return self._held.next_event()
