"""Quantize feature rows to small numbers and back. Every function takes and gives whole rows of a known size.

    per row    all float16 steps, one per row (absmax / 127; paper, section 4.2), then all values in steps
    bf16       the upper halves of the values, rounded: all first bytes (sign and exponent), then all second ones
    grouped    all steps, one per 64 values of a row, in eighths of an octave and as differences from the row before;
               then all values in steps
    float32    the values, little-endian

The sender alone chooses the step size. absmax / 127 and absmax / 7 make int8 and int4. A share of the group's root mean
square gives the rare large values large numbers, which cost little once entropy coded, instead of coarsening all the
others: of the three it takes the fewest bytes for a given noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outrider_proto.entropy import malformed

GROUP = 64
MAX_COUNT = 127.0  # how many steps a value may be away from zero
_MAX_HALF = float(np.finfo(np.float16).max)
_MAX_BF16 = float(np.array([0x7F7F0000], np.uint32).view(np.float32)[0])
_OCTAVE = 8  # step codes in a factor of two
_CODE_OF_ONE = 160  # steps from 2**-20 to 2**11.9
_STEPS = 2.0 ** ((np.arange(256) - _CODE_OF_ONE) / _OCTAVE).astype(np.float32)  # by code

Rows = NDArray[np.float32]  # [n, width]


@dataclass(frozen=True, slots=True)
class StepRule:
    """A group's step size as a share of its largest magnitude or its root mean square."""

    measure: Literal["absmax", "rms"]
    share: float


def quantize_per_row(rows: Rows) -> bytes:
    steps = np.minimum(np.abs(rows).max(axis=1) / MAX_COUNT, _MAX_HALF).astype("<f2")
    divisors = steps.astype(np.float32)[:, None]
    divisors[divisors == 0] = 1.0
    return b"".join((steps.tobytes(), _counts(rows, divisors).tobytes()))


def dequantize_per_row(raw: bytes, num_rows: int, width: int) -> Rows:
    """Raises Violation for a step that is not finite."""
    steps = np.frombuffer(raw, dtype="<f2", count=num_rows)
    if not np.isfinite(steps).all():
        raise malformed("features have steps that are not finite")
    counts = np.frombuffer(raw, dtype=np.int8, offset=2 * num_rows).reshape(num_rows, width)
    return counts.astype(np.float32) * steps.astype(np.float32)[:, None]


def to_bf16(rows: Rows) -> tuple[bytes, bytes]:
    """Return all first bytes and all second bytes. Rounds to nearest even."""
    # Clipped first: the rounding below would carry the largest float32 values over into infinity.
    bits = np.clip(rows, -_MAX_BF16, _MAX_BF16).astype(np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return (upper >> 8).astype(np.uint8).tobytes(), (upper & 0xFF).astype(np.uint8).tobytes()


def from_bf16(raw: bytes, num_rows: int, width: int) -> Rows:
    first, second = np.frombuffer(raw, dtype=np.uint8).reshape(2, num_rows, width).astype(np.uint32)
    return (first << 24 | second << 16).view(np.float32)


def to_float32(rows: Rows) -> bytes:
    return rows.astype("<f4").tobytes()


def from_float32(raw: bytes, num_rows: int, width: int) -> Rows:
    return np.frombuffer(raw, dtype="<f4").reshape(num_rows, width).astype(np.float32)


def num_groups(width: int) -> int:
    return -(-width // GROUP)


def quantize_grouped(rows: Rows, rule: StepRule) -> bytes:
    codes = _step_codes(rows, rule)
    counts = _counts(rows, _spread(_STEPS[codes], rows.shape[1]))
    differences = codes.copy()
    # uint8 on purpose, here and in cumsum: differences wrap around modulo 256, and so does their sum.
    differences[1:] -= codes[:-1]
    return differences.tobytes() + counts.tobytes()


def dequantize_grouped(raw: bytes, num_rows: int, width: int) -> Rows:
    groups = num_groups(width)
    differences = np.frombuffer(raw, dtype=np.uint8, count=num_rows * groups).reshape(num_rows, groups)
    codes = np.cumsum(differences, axis=0, dtype=np.uint8)
    counts = np.frombuffer(raw, dtype=np.int8, offset=num_rows * groups).reshape(num_rows, width)
    return counts.astype(np.float32) * _spread(_STEPS[codes], width)


def _step_codes(rows: Rows, rule: StepRule) -> NDArray[np.uint8]:
    """Return [n, groups] codes, each of the next larger step there is."""
    starts, widths = _groups(rows.shape[1])
    if rule.measure == "absmax":
        sizes = np.maximum.reduceat(np.abs(rows), starts, axis=1)
    else:
        # float64: squares of large float32 activations overflow.
        sums = np.add.reduceat(np.square(rows, dtype=np.float64), starts, axis=1)
        sizes = np.sqrt(sums / widths)
    wanted = np.maximum(sizes * rule.share, _STEPS[0])
    codes = np.ceil(np.log2(wanted) * _OCTAVE) + _CODE_OF_ONE
    return np.asarray(np.minimum(np.maximum(codes, 0), 255), dtype=np.uint8)


@lru_cache(maxsize=64)
def _groups(width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where the groups of a row begin and how wide they are."""
    # Cached because computing these for a few rows would take as long as everything else.
    starts = np.arange(0, width, GROUP)
    return starts, np.diff(starts, append=width)


def _counts(rows: Rows, steps: Rows) -> NDArray[np.int8]:
    """Round the values to whole steps."""
    counts = rows / steps
    np.rint(counts, out=counts)
    # np.clip takes twice as long for a few rows.
    np.maximum(counts, -MAX_COUNT, out=counts)
    np.minimum(counts, MAX_COUNT, out=counts)
    return counts.astype(np.int8)


def _spread(per_group: Rows, width: int) -> Rows:
    """Repeat [n, groups] into [n, width]."""
    # min(): rows narrower than a group would otherwise take a group's memory each, and a peer can send many of them.
    return np.repeat(per_group, min(GROUP, width), axis=1)[:, :width]
