"""Rate: one server that sends packets bit by bit, and a buffer before it."""

from __future__ import annotations

from outrider_netsim.impairments.buffer import Buffer
from outrider_netsim.impairments.impairment import InOrder, Packet, earlier
from outrider_netsim.impairments.outage import Holds


class Rate:
    """Send packets on when their last bit is out.

    That is size_bytes * 8 / rate_bps after the packet before, or after its own entry if that is later. A rate of 0 is
    unlimited. Nothing is sent during `holds`. Packets that find another one being sent wait in `buffer`.
    """

    def __init__(self, behind: InOrder, rate_bps: float, holds: Holds | None = None) -> None:
        self._behind = behind
        self._holds = holds
        self._s_per_byte = _s_per_byte(rate_bps)
        self.buffer = Buffer()
        self._sending: Packet | None = None
        self._sent_at = 0.0  # its last bit

    def set(self, rate_bps: float, now: float) -> None:
        """Change the rate from `now` on, also for waiting bits. Packets due by `now` must have been popped."""
        # The rest of the packet being sent takes the new rate, in proportion.
        before, self._s_per_byte = self._s_per_byte, _s_per_byte(rate_bps)
        if self._sending is not None and before:
            rest_s = self._holds.sending_s(now, self._sent_at) if self._holds else self._sent_at - now
            self._sent_at = self._after(now, rest_s * (self._s_per_byte / before))

    def lead_to(self, behind: InOrder) -> None:
        """Send packets to `behind` from now on; the end of the link must stay the same."""
        self._behind = behind

    def push(self, packet: Packet, now: float) -> None:
        self._serve(now)
        if self._sending is None:
            self._sending = packet
            self._sent_at = self._after(now, packet.size_bytes * self._s_per_byte)
        else:
            self.buffer.push(packet, now)

    def pop_ready(self, now: float) -> list[Packet]:
        self._serve(now)
        return self._behind.pop_ready(now)

    def next_event(self) -> float | None:
        later = self._behind.next_event()
        return later if self._sending is None else earlier(self._sent_at, later)

    def earliest_exit(self, packet: Packet, now: float) -> float:
        # A lower bound: a hold may come between.
        return self._behind.earliest_exit(packet, now + packet.size_bytes * self._s_per_byte)

    def _serve(self, now: float) -> None:
        while self._sending is not None and self._sent_at <= now:
            self._behind.push(self._sending, self._sent_at)
            self._sending = self.buffer.pop(self._sent_at)
            if self._sending is not None:
                self._sent_at = self._after(self._sent_at, self._sending.size_bytes * self._s_per_byte)

    def _after(self, begin: float, seconds: float) -> float:
        return self._holds.end(begin, seconds) if self._holds else begin + seconds


def _s_per_byte(rate_bps: float) -> float:
    return 8 / rate_bps if rate_bps else 0.0
