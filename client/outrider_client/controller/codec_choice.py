"""Chooses the codec of features: a coarser one where they would fill the link, which verdicts share. Pure.

The rule is on the share of the link's rate that features in the finest codec take at the current speed:

    from 3/4 on     the coarsest: cycles wait for the link
    below 0.6       the finest: its features delay nothing
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider_proto.frames import Codec

FINEST: Codec = "lean"
COARSEST: Codec = "leaner"
SIZE_VS_FINEST: Mapping[Codec, float] = {FINEST: 1.0, COARSEST: 0.74}  # bytes of a row: docs/results/features.md
# Two thresholds: with one, a switch changes the load itself and would be undone at once.
_FULL, _ROOMY = 0.75, 0.6


def feature_share(row_bytes: float | None, tokens_per_second: float | None, down_bps: float | None) -> float | None:
    """Return the share of the link's rate downwards that features take, in rows of the finest codec; None: unknown."""
    if row_bytes is None or tokens_per_second is None or not down_bps:
        return None
    return 8 * row_bytes * tokens_per_second / down_bps


def codec_for(share: float | None, in_use: Codec) -> Codec:
    """Return the codec to use, the one in use unless the features' share speaks for another."""
    if share is None or _ROOMY <= share < _FULL:
        return in_use
    return COARSEST if share >= _FULL else FINEST
