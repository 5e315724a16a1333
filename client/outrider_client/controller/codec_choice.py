"""How coarse features come: coarser where they would fill the link, which verdicts have to share. Pure.

What features in the finest codec would take of the link's rate, at the speed at which tokens come:

    from 3/4 on     the coarsest: cycles are waiting for the link
    below 0.6       the finest: its features would hold nothing up
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider_proto.frames import Codec

FINEST: Codec = "lean"
COARSEST: Codec = "leaner"
SIZE_VS_FINEST: Mapping[Codec, float] = {FINEST: 1.0, COARSEST: 0.74}  # bytes of a reply's row: docs/features.md
_FULL, _ROOMY = 0.75, 0.6


@dataclass(frozen=True, slots=True)
class FeatureLoad:
    """A reply's row as it would weigh in the finest codec, the tokens that come, and the link's rate downwards; None
    for what no one has measured yet."""

    row_bytes: float | None = None
    tokens_per_second: float | None = None
    down_bps: float | None = None

    @property
    def share(self) -> float | None:
        """Of the link's rate."""
        if self.row_bytes is None or self.tokens_per_second is None or not self.down_bps:
            return None
        return 8 * self.row_bytes * self.tokens_per_second / self.down_bps

    def __str__(self) -> str:
        if self.share is None or self.down_bps is None:
            return "nothing is known of the link"
        return f"in {FINEST} they would take {self.share:.2f} of {self.down_bps / 1e3:.0f} kbit/s"


def codec_for(load: FeatureLoad, in_use: Codec) -> Codec:
    """The one in use where nothing speaks for another."""
    share = load.share
    if share is None or _ROOMY <= share < _FULL:
        return in_use
    return COARSEST if share >= _FULL else FINEST
