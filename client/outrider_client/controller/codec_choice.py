"""Chooses the codec of features: a coarser one where they would fill the link, which verdicts share. Pure.

The rule is on the share of the link's rate that features in the finest codec take at the current speed:

    from 3/4 on     the coarsest: cycles wait for the link
    below 0.6       the finest: its features delay nothing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider_proto.frames import Codec

FINEST: Codec = "lean"
COARSEST: Codec = "leaner"
SIZE_VS_FINEST: Mapping[Codec, float] = {FINEST: 1.0, COARSEST: 0.74}  # bytes of a row: docs/results/features.md
# Two thresholds: with one, a switch changes the load itself and would be undone at once.
_FULL, _ROOMY = 0.75, 0.6


@dataclass(frozen=True, slots=True)
class FeatureLoad:
    """The load that features put on the link; None for what is not measured yet.

    `row_bytes`: size of a row in a reply, in the finest codec; `down_bps`: the link's rate downwards, in bit/s.
    """

    row_bytes: float | None = None
    tokens_per_second: float | None = None
    down_bps: float | None = None

    @property
    def share(self) -> float | None:
        """Share of the link's rate."""
        if self.row_bytes is None or self.tokens_per_second is None or not self.down_bps:
            return None
        return 8 * self.row_bytes * self.tokens_per_second / self.down_bps

    def __str__(self) -> str:
        if self.share is None or self.down_bps is None:
            return "the link is not measured yet"
        return f"in {FINEST} they would take {self.share:.2f} of {self.down_bps / 1e3:.0f} kbit/s"


def codec_for(load: FeatureLoad, in_use: Codec) -> Codec:
    """Return the codec to use, the one in use unless the load speaks for another."""
    share = load.share
    if share is None or _ROOMY <= share < _FULL:
        return in_use
    return COARSEST if share >= _FULL else FINEST
