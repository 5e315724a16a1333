"""Buffer packets that came out while an impairment brought the part behind it up to date."""

from __future__ import annotations

from outrider_netsim.impairments.impairment import Impairment, Packet


class Downstream:
    """The part of a link behind an impairment that must bring it up to date before it can decide."""

    def __init__(self, behind: Impairment) -> None:
        self._behind = behind
        self._packets: list[Packet] = []
        self._since = 0.0

    def bring_to(self, now: float) -> int:
        """Advance the part behind to `now` and return how many packets came out."""
        out = self._behind.pop_ready(now)
        if out:
            self._since = self._since if self._packets else now
            self._packets += out
        return len(out)

    def take(self) -> list[Packet]:
        """Return the packets that came out since the last call."""
        packets, self._packets = self._packets, []
        return packets

    def next_event(self) -> float | None:
        return self._since if self._packets else self._behind.next_event()
