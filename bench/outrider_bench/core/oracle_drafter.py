"""The base of drafting that already knows what to draft: it reads no tokens and only counts features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider_proto.frames import TapInfo


class OracleDrafting:
    """The part of the client's Drafting that does not draft."""

    levels_per_pass = 1

    def __init__(self, tap: TapInfo, *, stale_tolerant: bool) -> None:
        self.tap = tap
        self.stale_tolerant = stale_tolerant
        self.num_features = 0

    def begin(self, common: int) -> None:
        self.num_features = min(self.num_features, common)

    def add_features(self, first: int, rows: NDArray[np.float32]) -> None:  # [n, width]
        if len(rows) and (first <= self.num_features or self.tap.newest_only):
            self.num_features = max(self.num_features, first + len(rows))

    async def follow(self, tokens: Sequence[int]) -> None:
        """Do nothing: reading takes no time."""

    async def close(self) -> None:
        """Do nothing: there is nothing to stop."""
