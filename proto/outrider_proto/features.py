"""The feature codec: rows of target activations as bytes and back. Loss here costs acceptance, never correctness.

    int8     a float16 scale a row, absmax / 127, then the values rounded (paper, 4.2); all scales come first
    float32  the values as they are, for tests and traces

Either is then compressed with zstd. The receiver knows the size before it decompresses, and allocates no more.
"""

from __future__ import annotations

from typing import assert_never

import numpy as np
import zstandard
from numpy.typing import NDArray

from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import Codec

MAX_PAYLOAD_BYTES = 512 * 1024
MAX_RAW_BYTES = 2 * MAX_PAYLOAD_BYTES
_ZSTD_LEVEL = 1


def raw_bytes_per_row(codec: Codec, width: int) -> int:
    """Bytes a row takes before compression."""
    match codec:
        case "int8":
            return 2 + width
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


def encode_rows(rows: NDArray[np.float32], codec: Codec) -> bytes:
    """[n, width] float32 -> compressed bytes. Values that are not finite become zero."""
    clean = np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    match codec:
        case "int8":
            raw = _quantise(clean)
        case "float32":
            raw = clean.astype("<f4").tobytes()
        case _:
            assert_never(codec)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(raw)


def decode_rows(payload: bytes, codec: Codec, num_rows: int, width: int) -> NDArray[np.float32]:
    """Inverse of encode_rows. Raises Violation for anything but exactly num_rows x width finite values."""
    expected = num_rows * raw_bytes_per_row(codec, width)
    if not 0 < expected <= MAX_RAW_BYTES:
        raise _malformed(f"{num_rows} rows of {width} values: need 1 to {MAX_RAW_BYTES} bytes a frame")
    raw = _decompress(payload, expected)
    match codec:
        case "int8":
            rows = _dequantise(raw, num_rows, width)
        case "float32":
            rows = np.frombuffer(raw, dtype="<f4").reshape(num_rows, width).astype(np.float32)
        case _:
            assert_never(codec)
    if not np.isfinite(rows).all():
        raise _malformed("features are not finite")
    return rows


def _quantise(rows: NDArray[np.float32]) -> bytes:
    largest_scale = float(np.finfo(np.float16).max)
    scales = np.minimum(np.abs(rows).max(axis=1) / 127.0, largest_scale).astype("<f2")
    divisors = np.where(scales > 0, scales.astype(np.float32), 1.0)[:, None]
    values = np.clip(np.rint(rows / divisors), -127, 127).astype(np.int8)
    return b"".join((scales.tobytes(), values.tobytes()))


def _dequantise(raw: bytes, num_rows: int, width: int) -> NDArray[np.float32]:
    scales = np.frombuffer(raw, dtype="<f2", count=num_rows).astype(np.float32)
    values = np.frombuffer(raw, dtype=np.int8, offset=2 * num_rows).reshape(num_rows, width)
    return values.astype(np.float32) * scales[:, None]


def _decompress(payload: bytes, expected: int) -> bytes:
    """Exactly `expected` bytes, or Violation; a bomb stops at expected + 1."""
    try:
        with zstandard.ZstdDecompressor(max_window_size=2**21).stream_reader(payload) as reader:
            raw = reader.read(expected + 1)
    except zstandard.ZstdError as error:
        raise _malformed(f"features do not decompress: {error}") from error
    if len(raw) != expected:
        found = f"{len(raw)}" if len(raw) < expected else f"more than {expected}"
        raise _malformed(f"features hold {found} bytes: {expected} declared")
    return raw


def _malformed(message: str) -> Violation:
    return Violation(Reason.MALFORMED_FEATURES, message)
