"""The bottleneck's buffer: packets that wait for the rate or for a delivery opportunity, served in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outrider_netsim.impairments.codel import CoDel, Waiting
from outrider_netsim.impairments.impairment import ignore_drop
from outrider_netsim.impairments.packet import Packet


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
