"""The bottleneck's buffer: packets that wait for the rate or for a delivery opportunity, served in order.

With CoDel (RFC 8289) packets are dropped as they leave while every one has waited too long for some time: once the wait
has stayed above TARGET_S for INTERVAL_S, the n-th one INTERVAL_S / sqrt(n) after the one before, until one has waited
for less. The names are those of the RFC's pseudocode, and the constants its defaults and Linux's (include/net/codel.h),
without ECN.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from outrider_netsim.impairments.impairment import Packet, ignore_drop

TARGET_S = 0.005
INTERVAL_S = 0.1
FULL_BYTES = 1514  # no drop while no more than a packet would be left

Waiting = tuple[Packet, float]  # with the time of its entry


class Buffer:
    """A queue of at most `limit_bytes` (None: unlimited) that drops what does not fit, and what CoDel says.

    The packet being sent has left it, as with the kernel's qdiscs, and packets that are still delayed are not in it.
    """

    def __init__(self, limit_bytes: int | None = None, *, codel: bool = False) -> None:
        self.dropped = 0
        self.on_drop: Callable[[Packet, float], None] = ignore_drop
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0
        self._codel: CoDel | None = None
        self.set(limit_bytes, codel=codel)

    def set(self, limit_bytes: int | None, *, codel: bool) -> None:
        """Change the rules for packets that enter and leave from now on; those that wait stay."""
        self.limit_bytes = limit_bytes
        if not codel:
            self._codel = None
        elif self._codel is None:
            self._codel = CoDel(self._take, lambda: self._bytes, self._drop)

    @property
    def has_codel(self) -> bool:
        return self._codel is not None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def push(self, packet: Packet, now: float) -> None:
        """Let `packet` wait, or drop it."""
        if self.limit_bytes is not None and self._bytes + packet.size_bytes > self.limit_bytes:
            self._drop(packet, now)
        else:
            self._bytes += packet.size_bytes
            self._waiting.append((packet, now))

    def pop(self, now: float) -> Packet | None:
        """Return the next packet to send; None if no packet waits."""
        if self._codel is not None:
            return self._codel.pop(now)
        taken = self._take()
        return taken[0] if taken else None

    def _take(self) -> Waiting | None:
        if not self._waiting:
            return None
        taken = self._waiting.popleft()
        self._bytes -= taken[0].size_bytes
        return taken

    def _drop(self, packet: Packet, now: float) -> None:
        self.dropped += 1
        self.on_drop(packet, now)


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
