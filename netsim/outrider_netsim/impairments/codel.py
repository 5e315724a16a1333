"""CoDel (RFC 8289): drop packets as they leave a buffer in which every packet has waited too long for some time.

Once the time that packets waited has stayed above TARGET_S for INTERVAL_S, packets are dropped, the n-th one
INTERVAL_S / sqrt(n) after the one before, until one has waited for less. The names are those of the RFC's pseudocode,
and the constants its defaults and Linux's (include/net/codel.h), without ECN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from outrider_netsim.impairments.packet import Packet

TARGET_S = 0.005
INTERVAL_S = 0.1
FULL_BYTES = 1514  # no drop while no more than a packet would be left

Waiting = tuple[Packet, float]  # with the time of its entry


class CoDel:
    """Decides which packets of one queue to drop. `take` removes the first one, and `left_bytes` says what is left."""

    def __init__(
        self,
        take: Callable[[], Waiting | None],
        left_bytes: Callable[[], int],
        drop: Callable[[Packet, float], None],
    ) -> None:
        self._take = take
        self._left_bytes = left_bytes
        self._drop = drop
        self._first_above_time = 0.0  # when the wait will have been too long for an interval; 0: it is not too long
        self._drop_next = 0.0
        self._count = self._last_count = 0  # drops since the dropping state began, and then before it
        self._dropping = False

    def pop(self, now: float) -> Packet | None:
        """Return the packet to send, after dropping those before it; None if there is none."""
        packet, may_drop = self._next(now)
        if self._dropping:
            return self._go_on(packet, may_drop, now)
        if packet is None or not may_drop:
            return packet
        self._drop(packet, now)
        packet, _ = self._next(now)
        self._dropping = True
        # Shortly after the last dropping state, its pace is resumed.
        delta = self._count - self._last_count
        self._count = delta if delta > 1 and now - self._drop_next < 16 * INTERVAL_S else 1
        self._drop_next = self._control_law(now)
        self._last_count = self._count
        return packet

    def _go_on(self, packet: Packet | None, may_drop: bool, now: float) -> Packet | None:
        self._dropping = may_drop
        while packet is not None and self._dropping and now >= self._drop_next:
            self._drop(packet, now)
            self._count += 1
            packet, self._dropping = self._next(now)
            if self._dropping:
                self._drop_next = self._control_law(self._drop_next)
        return packet

    def _next(self, now: float) -> tuple[Packet | None, bool]:
        """Take the next packet; True with it if it may be dropped (the RFC's dodequeue)."""
        taken = self._take()
        if taken is None:
            self._first_above_time = 0.0
            return None, False
        packet, entered_at = taken
        if now - entered_at < TARGET_S or self._left_bytes() <= FULL_BYTES:
            self._first_above_time = 0.0
            return packet, False
        if not self._first_above_time:
            self._first_above_time = now + INTERVAL_S
            return packet, False
        return packet, now >= self._first_above_time

    def _control_law(self, since: float) -> float:
        return since + INTERVAL_S / math.sqrt(self._count)
