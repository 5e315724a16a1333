"""The far end of a link: packets wait here until they are popped."""

from __future__ import annotations

from collections import deque

from outrider_netsim.impairments.impairment import Packet


class Sink:
    """The innermost impairment. Alone it is a perfect link."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[float, Packet]] = deque()

    def push(self, packet: Packet, now: float) -> None:
        self._arrived.append((now, packet))

    def pop_ready(self, now: float) -> list[Packet]:
        arrived = self._arrived
        ready = []
        while arrived and arrived[0][0] <= now:
            ready.append(arrived.popleft()[1])
        return ready

    def next_event(self) -> float | None:
        return self._arrived[0][0] if self._arrived else None

    def earliest_exit(self, packet: Packet, now: float) -> float:
        return now
