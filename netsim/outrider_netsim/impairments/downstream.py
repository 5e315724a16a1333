"""Packets that came out while an impairment looked what was behind it; they wait here until they are asked for."""

from __future__ import annotations

from outrider_netsim.impairments.impairment import Impairment
from outrider_netsim.impairments.packet import Packet


class Held:
    """The part of a link behind an impairment that has to bring it up to date before it can decide."""

    def __init__(self, behind: Impairment) -> None:
        self._behind = behind
        self._packets: list[Packet] = []
        self._since = 0.0

    def bring_to(self, now: float) -> int:
        """Let everything behind happen that is due by `now`; the number of packets that came out."""
        out = self._behind.pop_ready(now)
        if out:
            self._since = self._since if self._packets else now
            self._packets += out
        return len(out)

    def take(self) -> list[Packet]:
        """All that came out and was not taken before."""
        packets, self._packets = self._packets, []
        return packets

    def next_event(self) -> float | None:
        return self._since if self._packets else self._behind.next_event()
