"""Rows of features as small numbers and back. Every function takes and gives whole rows; sizes are known beforehand.

    per row    a float16 step a row, absmax / 127, then the values in steps (paper, 4.2); all steps come first
    bf16       the upper halves of the values, rounded: all first bytes (sign and exponent), then all second ones
    grouped    a step for every 64 values of a row, then the values in steps; all steps come first, in eighths of an
               octave, as differences from the row before

A step's size is its sender's business. absmax / 127 and absmax / 7 make int8 and int4. With a share of the group's root
mean square instead the rare large values take large numbers and do not coarsen the others; entropy coded they cost
little. Of these it is the one with the fewest bytes for a given noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outrider_proto.entropy import malformed

GROUP = 64
MAX_COUNT = 127.0  # steps that a value may be away from zero
_MAX_HALF = float(np.finfo(np.float16).max)
_MAX_BF16 = float(np.array([0x7F7F0000], np.uint32).view(np.float32)[0])
_OCTAVE = 8  # step codes in a factor of two
_CODE_OF_ONE = 160  # steps from 2**-20 to 2**11.9
_STEPS = 2.0 ** ((np.arange(256) - _CODE_OF_ONE) / _OCTAVE).astype(np.float32)  # by code

Rows = NDArray[np.float32]  # [n, width]


@dataclass(frozen=True, slots=True)
class Fineness:
    """A group's step as a share of its largest magnitude or of its root mean square."""

    measure: Literal["absmax", "rms"]
    share: float


def quantize_per_row(rows: Rows) -> bytes:
    steps = np.minimum(np.abs(rows).max(axis=1) / MAX_COUNT, _MAX_HALF).astype("<f2")
    divisors = steps.astype(np.float32)[:, None]
    divisors[divisors == 0] = 1.0
    return b"".join((steps.tobytes(), _counts(rows, divisors).tobytes()))


def dequantize_per_row(raw: bytes, num_rows: int, width: int) -> Rows:
    """Raises Violation for a step that is no number."""
    steps = np.frombuffer(raw, dtype="<f2", count=num_rows)
    if not np.isfinite(steps).all():
        raise malformed("features have steps that are not finite")
    counts = np.frombuffer(raw, dtype=np.int8, offset=2 * num_rows).reshape(num_rows, width)
    return counts.astype(np.float32) * steps.astype(np.float32)[:, None]


def to_bf16(rows: Rows) -> tuple[bytes, bytes]:
    """First bytes, second bytes. Rounds to nearest even."""
    bits = np.clip(rows, -_MAX_BF16, _MAX_BF16).astype(np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return (upper >> 8).astype(np.uint8).tobytes(), (upper & 0xFF).astype(np.uint8).tobytes()


def from_bf16(raw: bytes, num_rows: int, width: int) -> Rows:
    first, second = np.frombuffer(raw, dtype=np.uint8).reshape(2, num_rows, width).astype(np.uint32)
    return (first << 24 | second << 16).view(np.float32)


def num_groups(width: int) -> int:
    return -(-width // GROUP)


def quantize_grouped(rows: Rows, fineness: Fineness) -> bytes:
    codes = _step_codes(rows, fineness)
    counts = _counts(rows, _spread(_STEPS[codes], rows.shape[1]))
    differences = codes.copy()
    differences[1:] -= codes[:-1]
    return differences.tobytes() + counts.tobytes()


def dequantize_grouped(raw: bytes, num_rows: int, width: int) -> Rows:
    groups = num_groups(width)
    differences = np.frombuffer(raw, dtype=np.uint8, count=num_rows * groups).reshape(num_rows, groups)
    codes = np.cumsum(differences, axis=0, dtype=np.uint8)
    counts = np.frombuffer(raw, dtype=np.int8, offset=num_rows * groups).reshape(num_rows, width)
    return counts.astype(np.float32) * _spread(_STEPS[codes], width)


def _step_codes(rows: Rows, fineness: Fineness) -> NDArray[np.uint8]:
    """[n, groups]: the next larger step there is."""
    starts, widths = _groups(rows.shape[1])
    if fineness.measure == "absmax":
        sizes = np.maximum.reduceat(np.abs(rows), starts, axis=1)
    else:
        sums = np.add.reduceat(np.square(rows, dtype=np.float64), starts, axis=1)
        sizes = np.sqrt(sums / widths)
    wanted = np.maximum(sizes * fineness.share, _STEPS[0])
    codes = np.ceil(np.log2(wanted) * _OCTAVE) + _CODE_OF_ONE
    return np.asarray(np.minimum(np.maximum(codes, 0), 255), dtype=np.uint8)


@lru_cache(maxsize=64)
def _groups(width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the groups of a row begin, and how wide they are; of a few rows these would take as long as all else."""
    starts = np.arange(0, width, GROUP)
    return starts, np.diff(starts, append=width)


def _counts(rows: Rows, steps: Rows) -> NDArray[np.int8]:
    """Values in steps, to the nearest."""
    counts = rows / steps
    np.rint(counts, out=counts)
    np.maximum(counts, -MAX_COUNT, out=counts)  # half the time of clip, for a few rows
    np.minimum(counts, MAX_COUNT, out=counts)
    return counts.astype(np.int8)


def _spread(of_groups: Rows, width: int) -> Rows:
    """[n, groups] -> [n, width]. A row of less than a group is not made as wide as one: there may be many."""
    return np.repeat(of_groups, min(GROUP, width), axis=1)[:, :width]
