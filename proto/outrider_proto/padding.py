"""What features would weigh if they were wider, for emulation: as many rows of Gaussian values in the same codec, with
its headers and tables. Sizes are remembered, so that a server's loop encodes each of them once."""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outrider_proto.feature_codec import MANY_ROWS, encode_rows
from outrider_proto.frames import Codec

_SEED = 0


def padding(payload_bytes: int, codec: Codec, num_rows: int, width: int, of_rows: int) -> bytes:
    """What a payload of `num_rows`, a piece of `of_rows`, lacks of the size of rows of `width`; does not compress."""
    return os.urandom(max(weight(codec, num_rows, width, of_rows) - payload_bytes, 0))


def weight(codec: Codec, num_rows: int, width: int, of_rows: int = 0) -> int:
    """Bytes of `num_rows` Gaussian rows of `width` values. More than a reply has count as several replies."""
    measured = min(num_rows, MANY_ROWS)
    many = max(num_rows, of_rows) > MANY_ROWS
    return round(_encoded_bytes(codec, measured, width, many) * num_rows / measured)


@lru_cache(maxsize=256)
def _encoded_bytes(codec: Codec, num_rows: int, width: int, many: bool) -> int:
    return len(encode_rows(_gaussian(width)[:num_rows], codec, MANY_ROWS + 1 if many else num_rows))


@lru_cache(maxsize=4)
def _gaussian(width: int) -> NDArray[np.float32]:  # [MANY_ROWS, width]
    return np.random.default_rng(_SEED).standard_normal((MANY_ROWS, width), dtype=np.float32)
