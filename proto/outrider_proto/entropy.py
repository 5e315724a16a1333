"""Lossless coding of quantized features. Both sides know the raw size beforehand, and no more is ever allocated.

zstd serves general data. Small numbers of one byte each take deflate restricted to Huffman coding (Z_HUFFMAN_ONLY):
activations hold no repetitions to match, and searching for them costs bytes as well as time.
"""

from __future__ import annotations

import threading
import zlib

import zstandard

from outrider_proto.errors import Reason, Violation

_RAW = -15  # no header and no checksum: the transport has one


class _Zstd(threading.local):
    """One context per thread."""

    # Contexts must not be shared between threads, and creating one costs more than compressing a few rows.

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def zstd(raw: bytes) -> bytes:
    return _zstd.compressor.compress(raw)


def unzstd(payload: bytes, expected: int) -> bytes:
    """Decompress to exactly `expected` bytes. Raises Violation for anything else."""
    # Without a declared content size zstd would allocate whatever a hostile frame expands to. With one it enforces it.
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
    """Code all parts in one stream, each with its own Huffman table."""
    coder = zlib.compressobj(wbits=_RAW, strategy=zlib.Z_HUFFMAN_ONLY)
    # Z_BLOCK ends the deflate block and with it the table, without the 4 bytes of a Z_SYNC_FLUSH.
    coded = [coder.compress(part) + coder.flush(zlib.Z_BLOCK) for part in parts[:-1]]
    return b"".join((*coded, coder.compress(parts[-1]), coder.flush()))


def unhuffman(payload: bytes, expected: int) -> bytes:
    """Decode to exactly `expected` bytes of all parts. Raises Violation for anything else."""
    decoder = zlib.decompressobj(_RAW)
    try:
        # One more, to see whether the stream ends there.
        raw = decoder.decompress(payload, expected + 1)
    except zlib.error as error:
        raise malformed(f"features do not decompress: {error}") from error
    if len(raw) != expected or not decoder.eof or decoder.unused_data:
        raise malformed(f"features do not end after {expected} bytes")
    return raw


def malformed(message: str) -> Violation:
    return Violation(Reason.MALFORMED_FEATURES, message)
