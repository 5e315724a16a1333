"""The feature codec: rows of target activations as bytes and back. Loss here costs acceptance, never correctness.

    int8          one step size per row, absmax / 127 (paper, section 4.2)
    int8-grouped  one step size per group of 64 values, absmax / 127
    int4-grouped  one step size per group of 64 values, absmax / 7
    lean          a share of each group's root mean square: a larger one for the many rows of a prompt
    leaner        the larger share for replies as well as prompts
    bf16          the values in bfloat16
    float32       the values unchanged, for tests and traces

A codec is a quantizer (quantize.py) and a coder (entropy.py). The receiver knows the raw size before it decompresses,
and allocates no more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from outrider_proto.entropy import huffman, malformed, unhuffman, unzstd, zstd
from outrider_proto.frames import Codec
from outrider_proto.quantize import (
    Rows,
    StepRule,
    dequantize_grouped,
    dequantize_per_row,
    from_bf16,
    from_float32,
    num_groups,
    quantize_grouped,
    quantize_per_row,
    to_bf16,
    to_float32,
)

MAX_PAYLOAD_BYTES = 512 * 1024
MAX_RAW_BYTES = 2 * MAX_PAYLOAD_BYTES
MANY_ROWS = 16  # a reply has no more rows than this, a prompt usually has
INT8 = StepRule("absmax", 1 / 127)
INT4 = StepRule("absmax", 1 / 7)
LEAN = StepRule("rms", 0.4)
LEANER = StepRule("rms", 0.8)
_PADDING_SEED = 0


@dataclass(frozen=True, slots=True)
class _Quantizer:
    """`quantize` takes the rows and whether they are of a prompt, and returns the parts that the coder codes apart."""

    row_bytes: Callable[[int], int]
    quantize: Callable[[Rows, bool], tuple[bytes, ...]]
    dequantize: Callable[[bytes, int, int], Rows]


@dataclass(frozen=True, slots=True)
class _Coder:
    encode: Callable[..., bytes]
    decode: Callable[[bytes, int], bytes]


def _grouped(step: StepRule, prompt_step: StepRule | None = None) -> _Quantizer:
    return _Quantizer(
        row_bytes=lambda width: num_groups(width) + width,
        quantize=lambda rows, is_prompt: (quantize_grouped(rows, (is_prompt and prompt_step) or step),),
        dequantize=dequantize_grouped,
    )


_PER_ROW = _Quantizer(lambda width: 2 + width, lambda rows, _: (quantize_per_row(rows),), dequantize_per_row)
_BF16 = _Quantizer(lambda width: 2 * width, lambda rows, _: to_bf16(rows), from_bf16)
_FLOAT32 = _Quantizer(lambda width: 4 * width, lambda rows, _: (to_float32(rows),), from_float32)
_ZSTD = _Coder(zstd, unzstd)
_HUFFMAN = _Coder(huffman, unhuffman)

_CODECS: dict[Codec, tuple[_Quantizer, _Coder]] = {
    "int8": (_PER_ROW, _ZSTD),
    "int8-grouped": (_grouped(INT8), _HUFFMAN),
    "int4-grouped": (_grouped(INT4), _HUFFMAN),
    "lean": (_grouped(LEAN, prompt_step=LEANER), _HUFFMAN),
    "leaner": (_grouped(LEANER), _HUFFMAN),
    "bf16": (_BF16, _HUFFMAN),
    "float32": (_FLOAT32, _ZSTD),
}


def raw_bytes_per_row(codec: Codec, width: int) -> int:
    """Return the bytes that a row takes before compression."""
    quantizer, _ = _CODECS[codec]
    return quantizer.row_bytes(width)


def rows_per_frame(codec: Codec, width: int) -> int:
    """Return how many rows stay below MAX_PAYLOAD_BYTES even when they do not compress.

    Raises ValueError for a width at which not a single row fits.
    """
    rows = (MAX_PAYLOAD_BYTES - 1024) // raw_bytes_per_row(codec, width)
    if rows < 1:
        raise ValueError(f"width={width}: one row in {codec} exceeds {MAX_PAYLOAD_BYTES} bytes")
    return rows


def encode_rows(rows: Rows, codec: Codec, of_rows: int = 0) -> bytes:
    """Compress [n, width] float32 rows, a piece of `of_rows` where that is more. Non-finite values become zero."""
    quantizer, coder = _CODECS[codec]
    clean = rows if np.isfinite(rows).all() else np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    return coder.encode(*quantizer.quantize(clean, max(len(rows), of_rows) > MANY_ROWS))


def decode_rows(payload: bytes, codec: Codec, num_rows: int, width: int) -> Rows:
    """Decompress what encode_rows made. Raises Violation for anything but exactly num_rows x width finite values."""
    quantizer, coder = _CODECS[codec]
    # Checked before anything is decompressed: the sizes are the sender's claim, and memory is allocated by them.
    expected = num_rows * quantizer.row_bytes(width)
    if num_rows < 1 or width < 1 or expected > MAX_RAW_BYTES:
        raise malformed(f"{num_rows} rows of {width} values: need 1 to {MAX_RAW_BYTES} bytes a frame")
    rows = quantizer.dequantize(coder.decode(payload, expected), num_rows, width)
    # bf16 and float32 carry any bit pattern, infinities and NaN included.
    if not np.isfinite(rows).all():
        raise malformed("features are not finite")
    return rows


def padding(payload_bytes: int, codec: Codec, num_rows: int, width: int, of_rows: int) -> bytes:
    """Return incompressible filling that brings a payload to the size of rows `width` wide, for emulation."""
    return os.urandom(max(typical_payload_bytes(codec, num_rows, width, of_rows) - payload_bytes, 0))


def typical_payload_bytes(codec: Codec, num_rows: int, width: int, of_rows: int = 0) -> int:
    """Return the payload size of `num_rows` Gaussian rows. More than MANY_ROWS count as several replies."""
    measured = min(num_rows, MANY_ROWS)
    is_prompt = max(num_rows, of_rows) > MANY_ROWS
    return round(_measured_bytes(codec, measured, width, is_prompt) * num_rows / measured)


# Remembered, so that a server's loop encodes each size once.
@lru_cache(maxsize=256)
def _measured_bytes(codec: Codec, num_rows: int, width: int, is_prompt: bool) -> int:
    return len(encode_rows(_gaussian(width)[:num_rows], codec, MANY_ROWS + 1 if is_prompt else num_rows))


@lru_cache(maxsize=4)
def _gaussian(width: int) -> Rows:  # [MANY_ROWS, width]
    return np.random.default_rng(_PADDING_SEED).standard_normal((MANY_ROWS, width), dtype=np.float32)
