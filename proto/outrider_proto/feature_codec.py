"""The feature codec: rows of target activations as bytes and back. Loss here costs acceptance, never correctness.

    int8          a step a row, absmax / 127 (paper, 4.2)
    int8-grouped  a step for every 64 values, absmax / 127
    int4-grouped  the same, absmax / 7
    lean          the same, a share of the root mean square: more of it for the many rows of a prompt
    leaner        the same, as much of it for a reply's rows as for a prompt's
    bf16          the values in bfloat16
    float32       the values as they are, for tests and traces

How a codec writes numbers is quantisation.py's, how they are compressed entropy.py's. The receiver knows the size
before it decompresses, and allocates no more.
"""

from __future__ import annotations

from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from outrider_proto.entropy import huffman, malformed, unhuffman, unzstd, zstd
from outrider_proto.frames import Codec
from outrider_proto.quantize import (
    Fineness,
    dequantize_grouped,
    dequantize_per_row,
    from_bf16,
    num_groups,
    quantize_grouped,
    quantize_per_row,
    to_bf16,
)

MAX_PAYLOAD_BYTES = 512 * 1024
MAX_RAW_BYTES = 2 * MAX_PAYLOAD_BYTES
MANY_ROWS = 16  # more than a reply has: a prompt
INT8 = Fineness("absmax", 1 / 127)
INT4 = Fineness("absmax", 1 / 7)
LEAN = Fineness("rms", 0.4)
LEANER = Fineness("rms", 0.8)


def raw_bytes_per_row(codec: Codec, width: int) -> int:
    """Bytes a row takes before compression."""
    match codec:
        case "int8":
            return 2 + width
        case "int8-grouped" | "int4-grouped" | "lean" | "leaner":
            return num_groups(width) + width
        case "bf16":
            return 2 * width
        case "float32":
            return 4 * width
        case _:
            assert_never(codec)


def rows_per_frame(codec: Codec, width: int) -> int:
    """Rows whose payload stays below MAX_PAYLOAD_BYTES even when they do not compress.

    Raises ValueError for a width of which not one row fits.
    """
    rows = (MAX_PAYLOAD_BYTES - 1024) // raw_bytes_per_row(codec, width)
    if rows < 1:
        raise ValueError(f"width={width}: one row in {codec} exceeds {MAX_PAYLOAD_BYTES} bytes")
    return rows


def encode_rows(rows: NDArray[np.float32], codec: Codec, of_rows: int = 0) -> bytes:
    """[n, width] float32, a piece of `of_rows` where those are more -> compressed bytes. Values that are not finite
    become zero."""
    clean = rows if np.isfinite(rows).all() else np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    match codec:
        case "int8":
            return zstd(quantize_per_row(clean))
        case "int8-grouped":
            return huffman(quantize_grouped(clean, INT8))
        case "int4-grouped":
            return huffman(quantize_grouped(clean, INT4))
        case "lean":
            return huffman(quantize_grouped(clean, LEANER if max(len(rows), of_rows) > MANY_ROWS else LEAN))
        case "leaner":
            return huffman(quantize_grouped(clean, LEANER))
        case "bf16":
            return huffman(*to_bf16(clean))
        case "float32":
            return zstd(clean.astype("<f4").tobytes())
        case _:
            assert_never(codec)


def decode_rows(payload: bytes, codec: Codec, num_rows: int, width: int) -> NDArray[np.float32]:
    """Inverse of encode_rows. Raises Violation for anything but exactly num_rows x width finite values."""
    expected = num_rows * raw_bytes_per_row(codec, width)
    if num_rows < 1 or width < 1 or expected > MAX_RAW_BYTES:
        raise malformed(f"{num_rows} rows of {width} values: need 1 to {MAX_RAW_BYTES} bytes a frame")
    match codec:
        case "int8":
            rows = dequantize_per_row(unzstd(payload, expected), num_rows, width)
        case "int8-grouped" | "int4-grouped" | "lean" | "leaner":
            rows = dequantize_grouped(unhuffman(payload, expected), num_rows, width)
        case "bf16":
            rows = from_bf16(unhuffman(payload, expected), num_rows, width)
        case "float32":
            raw = unzstd(payload, expected)
            rows = np.frombuffer(raw, dtype="<f4").reshape(num_rows, width).astype(np.float32)
        case _:
            assert_never(codec)
    if not np.isfinite(rows).all():
        raise malformed("features are not finite")
    return rows
