"""Tokens and parents as bytes: 3 bytes a token, 1 byte a parent (paper, Table 7), and the hash of a prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from outrider_proto.errors import Reason, Violation

TOKEN_BYTES = 3
MAX_TOKEN = 2**24 - 1


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Little-endian, 3 bytes a token. Raises Violation for an id outside [0, 2**24)."""
    ids = np.asarray(tokens, dtype=np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() <= MAX_TOKEN:
        raise Violation(Reason.TOKEN_OUT_OF_VOCABULARY, f"a token id is outside 0..{MAX_TOKEN}")
    return ids.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :TOKEN_BYTES].tobytes()


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    """Inverse of pack_tokens. Raises Violation when the length is no multiple of 3."""
    if len(data) % TOKEN_BYTES:
        raise Violation(Reason.MALFORMED_FRAME, f"{len(data)} bytes of tokens: need a multiple of {TOKEN_BYTES}")
    padded = np.zeros((len(data) // TOKEN_BYTES, 4), dtype=np.uint8)
    padded[:, :TOKEN_BYTES] = np.frombuffer(data, dtype=np.uint8).reshape(-1, TOKEN_BYTES)
    return tuple(padded.view("<u4").ravel().tolist())


def pack_parents(parents: Sequence[int]) -> bytes:
    """One byte a node: 0 is the root, n is node n - 1."""
    return bytes(parent + 1 for parent in parents)


def unpack_parents(data: bytes) -> tuple[int, ...]:
    """Inverse of pack_parents; whether they make a tree is DraftTree's to check."""
    return tuple(byte - 1 for byte in data)


def prefix_hash(tokens: Sequence[int]) -> bytes:
    """8 bytes that two sides compare to learn whether they hold the same tokens."""
    return hashlib.blake2b(pack_tokens(tokens), digest_size=8).digest()
