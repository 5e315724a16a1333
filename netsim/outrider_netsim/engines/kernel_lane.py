"""One direction of the kernel engine: what netem is told of it, change after change, and what its counters mean."""

from __future__ import annotations

import hashlib
from itertools import count

from outrider_netsim.engines.netem import Shaping, shaping_of
from outrider_netsim.engines.shaped_pair import Counted
from outrider_netsim.impairments.path import PathStats
from outrider_netsim.namespaces.interfaces import Side
from outrider_netsim.profiles.profile import Direction


class KernelLane:
    """`direction` is what holds now: a row of the profile's trace, where it has one."""

    def __init__(self, side: Side, seed: int) -> None:
        self.side = side
        self.direction = Direction()
        self._seed = f"{seed}/{'up' if side == 'A' else 'down'}"
        self._changes = count()
        self._dropped = self._lost = self._by_outage = 0

    def shaping(self, is_cut: bool) -> Shaping:
        """What to tell the kernel now. netem starts anew with every change, so each has a seed of its own."""
        digest = hashlib.sha256(f"{self._seed}/{next(self._changes)}".encode()).digest()
        return shaping_of(self.direction, int.from_bytes(digest[:8], "big"), is_cut=is_cut)

    def book(self, counted: Counted, was_down: bool) -> PathStats:
        """Everything so far; packets dropped since the last booking count as the outage's if the link was down.

        Call before the link goes down or comes back, so that the reason is one.
        """
        dropped, self._dropped = counted.dropped - self._dropped, counted.dropped
        if was_down:
            self._by_outage += dropped
        else:
            self._lost += dropped
        return PathStats(
            packets_in=counted.packets_out + counted.waiting_packets + counted.dropped,
            packets_out=counted.packets_out,
            lost=self._lost,
            dropped_by_outage=self._by_outage,
            bytes_in=counted.bytes_out + counted.waiting_bytes,
            bytes_out=counted.bytes_out,
        )
