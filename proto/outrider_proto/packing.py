"""Tokens and parents as bytes: 3 bytes a token, 1 byte a parent (paper, Table 7); numbers; and the hash of a prefix."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from outrider_proto.errors import Reason, Violation

TOKEN_BYTES = 3
FLOAT_BYTES = 4
HASH_BYTES = 8
MAX_TOKEN = 2**24 - 1


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Little-endian, 3 bytes a token. Raises Violation for an id outside [0, 2**24)."""
    if tokens and not 0 <= min(tokens) <= max(tokens) <= MAX_TOKEN:
        raise Violation(Reason.TOKEN_OUT_OF_VOCABULARY, f"a token id is outside 0..{MAX_TOKEN}")
    wide = struct.pack(f"<{len(tokens)}I", *tokens)
    packed = bytearray(TOKEN_BYTES * len(tokens))
    for i in range(TOKEN_BYTES):
        packed[i::TOKEN_BYTES] = wide[i::4]
    return bytes(packed)


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    """Inverse of pack_tokens. Raises Violation when the length is no multiple of 3."""
    if len(data) % TOKEN_BYTES:
        raise Violation(Reason.MALFORMED_FRAME, f"{len(data)} bytes of tokens: need a multiple of {TOKEN_BYTES}")
    count = len(data) // TOKEN_BYTES
    wide = bytearray(4 * count)
    for i in range(TOKEN_BYTES):
        wide[i::4] = data[i::TOKEN_BYTES]
    return struct.unpack(f"<{count}I", wide)


def pack_parents(parents: Sequence[int]) -> bytes:
    """One byte a node: 0 is the root, n is node n - 1."""
    return bytes(parent + 1 for parent in parents)


def unpack_parents(data: bytes) -> tuple[int, ...]:
    """Inverse of pack_parents; whether they make a tree is DraftTree's to check."""
    return tuple(byte - 1 for byte in data)


def pack_floats(values: Sequence[float]) -> bytes:
    """float32, little-endian."""
    return struct.pack(f"<{len(values)}f", *values)


def unpack_floats(data: bytes) -> tuple[float, ...]:
    """Inverse of pack_floats for values of float32. Raises Violation when the length is no multiple of 4."""
    if len(data) % FLOAT_BYTES:
        raise Violation(Reason.MALFORMED_FRAME, f"{len(data)} bytes of numbers: need a multiple of {FLOAT_BYTES}")
    return struct.unpack(f"<{len(data) // FLOAT_BYTES}f", data)


def prefix_hash(tokens: Sequence[int]) -> bytes:
    """HASH_BYTES that two sides compare to learn whether they hold the same tokens."""
    return hashlib.blake2b(pack_tokens(tokens), digest_size=HASH_BYTES).digest()
