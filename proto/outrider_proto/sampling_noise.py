"""The random numbers that decide sampled tokens. Both sides draw the same ones, so they are part of the protocol."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # numbers generated at a time
_BELOW_ONE = 1.0 - 2.0**-40  # keeps u * total below total in float64


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that decides `position` under `seed`: Philox keyed by (seed, position // 256)."""
    block, offset = divmod(position, _BLOCK)
    return float(_uniform_block(seed, block)[offset])


@lru_cache(maxsize=1024)
def _uniform_block(seed: int, block: int) -> NDArray[np.float64]:
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, block], dtype=np.uint64)))
    return generator.random(_BLOCK) * _BELOW_ONE
