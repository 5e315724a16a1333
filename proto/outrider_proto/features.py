"""The feature codec: rows of target activations as bytes and back. Loss here costs acceptance, never correctness.

    int8     a float16 scale a row, absmax / 127, then the values rounded (paper, 4.2); all scales come first
    float32  the values as they are, for tests and traces

Either is then compressed with zstd. The receiver knows the size before it decompresses, and allocates no more.
"""

from __future__ import annotations

import threading
from typing import assert_never

import numpy as np
import zstandard
from numpy.typing import NDArray

from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import Codec

MAX_PAYLOAD_BYTES = 512 * 1024
MAX_RAW_BYTES = 2 * MAX_PAYLOAD_BYTES
_MAX_SCALE = float(np.finfo(np.float16).max)


class _Zstd(threading.local):
    """One context a thread: they may not be shared, and making one costs more than compressing a few rows."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


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
    clean = rows if np.isfinite(rows).all() else np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    match codec:
        case "int8":
            raw = _quantise(clean)
        case "float32":
            raw = clean.astype("<f4").tobytes()
        case _:
            assert_never(codec)
    return _zstd.compressor.compress(raw)


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
    scales = np.minimum(np.abs(rows).max(axis=1) / 127.0, _MAX_SCALE).astype("<f2")
    divisors = scales.astype(np.float32)[:, None]
    divisors[divisors == 0] = 1.0
    values = rows / divisors
    np.rint(values, out=values)
    np.minimum(values, 127.0, out=values)
    np.maximum(values, -127.0, out=values)
    return b"".join((scales.tobytes(), values.astype(np.int8).tobytes()))


def _dequantise(raw: bytes, num_rows: int, width: int) -> NDArray[np.float32]:
    scales = np.frombuffer(raw, dtype="<f2", count=num_rows).astype(np.float32)
    values = np.frombuffer(raw, dtype=np.int8, offset=2 * num_rows).reshape(num_rows, width)
    return values.astype(np.float32) * scales[:, None]


def _decompress(payload: bytes, expected: int) -> bytes:
    """Exactly `expected` bytes, or Violation. The frame must say so of itself, and zstd holds it to its word."""
    try:
        size = zstandard.get_frame_parameters(payload).content_size
        if size != expected:
            found = "an unknown number of" if size == zstandard.CONTENTSIZE_UNKNOWN else size
            raise _malformed(f"features hold {found} bytes: {expected} declared")
        raw: bytes = _zstd.decompressor.decompress(payload)
    except zstandard.ZstdError as error:
        raise _malformed(f"features do not decompress: {error}") from error
    return raw


def _malformed(message: str) -> Violation:
    return Violation(Reason.MALFORMED_FEATURES, message)
