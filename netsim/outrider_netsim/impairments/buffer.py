"""The bottleneck's buffer: packets that wait for the rate or for a delivery opportunity, served in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outrider_netsim.impairments.impairment import ignore_drop
from outrider_netsim.impairments.packet import Packet


class Buffer:
    """A queue of at most `limit_bytes` (None: unlimited) that drops what does not fit.

    The packet being sent has left it, as with the kernel's qdiscs, and packets that are still delayed are not in it.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.dropped = 0
        self.on_drop: Callable[[Packet, float], None] = ignore_drop
        self._waiting: deque[Packet] = deque()
        self._bytes = 0
        self.limit_bytes = limit_bytes  # for packets that enter from now on; those that wait stay

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def push(self, packet: Packet, now: float) -> None:
        """Let `packet` wait, or drop it."""
        if self.limit_bytes is not None and self._bytes + packet.size_bytes > self.limit_bytes:
            self.dropped += 1
            self.on_drop(packet, now)
        else:
            self._bytes += packet.size_bytes
            self._waiting.append(packet)

    def pop(self, now: float) -> Packet | None:
        """Return the next packet to send; None if no packet waits."""
        if not self._waiting:
            return None
        packet = self._waiting.popleft()
        self._bytes -= packet.size_bytes
        return packet
