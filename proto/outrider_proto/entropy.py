"""Lossless coding of quantized features, to a size that both sides know beforehand: no more than that is allocated.

zstd for what compresses as it stands, and deflate that does nothing but Huffman coding (Z_HUFFMAN_ONLY) for small
numbers of one byte each: activations hold no repetitions that matching could find, and a search costs bytes as well as
time. Neither says how large it is beside its content: zstd's own size must agree, deflate's stream must end there.
"""

from __future__ import annotations

import threading
import zlib

import zstandard

from outrider_proto.errors import Reason, Violation

_RAW = -15  # no header and no checksum: the transport has one


class _Zstd(threading.local):
    """One context a thread: they may not be shared, and making one costs more than compressing a few rows."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def zstd(raw: bytes) -> bytes:
    return _zstd.compressor.compress(raw)


def unzstd(payload: bytes, expected: int) -> bytes:
    """Exactly `expected` bytes, or Violation. The frame must say so of itself, and zstd holds it to its word."""
    try:
        size = zstandard.get_frame_parameters(payload).content_size
        if size != expected:
            found = "an unknown number of" if size == zstandard.CONTENTSIZE_UNKNOWN else size
            raise malformed(f"features hold {found} bytes: {expected} declared")
        raw: bytes = _zstd.decompressor.decompress(payload)
    except zstandard.ZstdError as error:
        raise malformed(f"features do not decompress: {error}") from error
    return raw


def huffman(*parts: bytes) -> bytes:
    """One stream in which each part has codes of its own."""
    coder = zlib.compressobj(wbits=_RAW, strategy=zlib.Z_HUFFMAN_ONLY)
    coded = [coder.compress(part) + coder.flush(zlib.Z_BLOCK) for part in parts[:-1]]
    return b"".join((*coded, coder.compress(parts[-1]), coder.flush()))


def unhuffman(payload: bytes, expected: int) -> bytes:
    """Exactly `expected` bytes (all parts), or Violation."""
    decoder = zlib.decompressobj(_RAW)
    try:
        raw = decoder.decompress(payload, expected + 1)  # one more, to see whether the stream ends there
    except zlib.error as error:
        raise malformed(f"features do not decompress: {error}") from error
    if len(raw) != expected or not decoder.eof or decoder.unused_data:
        raise malformed(f"features do not end after {expected} bytes")
    return raw


def malformed(message: str) -> Violation:
    return Violation(Reason.MALFORMED_FEATURES, message)
