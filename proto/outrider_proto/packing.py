"""Tokens, parents, numbers and log probabilities as bytes, and what two sides compare of a prefix. Knows no protobuf.

A token takes 3 bytes and a parent 1 (paper, Table 7). The log probabilities of a verdict are those of its own tokens,
then the likeliest tokens in the place of each, as many in every place, and then theirs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import MAX_TOP_LOGPROBS, TokenLogprob
from outrider_proto.tree import MAX_NODES

TOKEN_BYTES = 3
FLOAT_BYTES = 4
HASH_BYTES = 8
MAX_TOKEN = 2**24 - 1


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Pack token ids, little-endian. Raises Violation for an id outside [0, 2**24)."""
    if tokens and not 0 <= min(tokens) <= max(tokens) <= MAX_TOKEN:
        raise Violation(Reason.TOKEN_OUT_OF_VOCABULARY, f"a token id is outside 0..{MAX_TOKEN}")
    # Sliced whole instead of token by token: a prompt has thousands of tokens.
    wide = struct.pack(f"<{len(tokens)}I", *tokens)
    packed = bytearray(TOKEN_BYTES * len(tokens))
    for i in range(TOKEN_BYTES):
        packed[i::TOKEN_BYTES] = wide[i::4]
    return bytes(packed)


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    """Unpack what pack_tokens packed. Raises Violation when the length is not a multiple of 3."""
    if len(data) % TOKEN_BYTES:
        raise Violation(Reason.MALFORMED_FRAME, f"{len(data)} bytes of tokens: need a multiple of {TOKEN_BYTES}")
    count = len(data) // TOKEN_BYTES
    wide = bytearray(4 * count)
    for i in range(TOKEN_BYTES):
        wide[i::4] = data[i::TOKEN_BYTES]
    return struct.unpack(f"<{count}I", wide)


def pack_parents(parents: Sequence[int]) -> bytes:
    """Pack one byte per node: 0 is the root, n is node n - 1."""
    return bytes(parent + 1 for parent in parents)


def unpack_parents(data: bytes) -> tuple[int, ...]:
    """Unpack what pack_parents packed; DraftTree checks whether they make a tree."""
    return tuple(byte - 1 for byte in data)


def pack_floats(values: Sequence[float]) -> bytes:
    """Pack numbers as little-endian float32."""
    return struct.pack(f"<{len(values)}f", *values)


def unpack_floats(data: bytes) -> tuple[float, ...]:
    """Unpack what pack_floats packed. Raises Violation when the length is not a multiple of 4."""
    if len(data) % FLOAT_BYTES:
        raise Violation(Reason.MALFORMED_FRAME, f"{len(data)} bytes of numbers: need a multiple of {FLOAT_BYTES}")
    return struct.unpack(f"<{len(data) // FLOAT_BYTES}f", data)


def prefix_hash(tokens: Sequence[int]) -> bytes:
    """Return HASH_BYTES that two sides compare to learn whether they hold the same tokens."""
    return hashlib.blake2b(pack_tokens(tokens), digest_size=HASH_BYTES).digest()


class PrefixHasher:
    """The prefix_hash of a text that grows at its end: each token is hashed once."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=HASH_BYTES)
        self.length = 0  # tokens hashed so far

    def extend(self, tokens: Sequence[int]) -> None:
        self._digest.update(pack_tokens(tokens))
        self.length += len(tokens)

    def hash_with(self, *tokens: int) -> bytes:
        """Return prefix_hash of the text followed by `tokens`, which do not stay."""
        whole = self._digest.copy()
        whole.update(pack_tokens(tokens))
        return whole.digest()


def common_prefix_len(one: Sequence[int], other: Sequence[int]) -> int:
    shorter = min(len(one), len(other))
    # Nearly always equal, and comparing tuples is far faster than looking at the tokens one by one.
    if tuple(one[:shorter]) == tuple(other[:shorter]):
        return shorter
    return next(i for i in range(shorter) if one[i] != other[i])


class PackedLogprobs(NamedTuple):
    """The fields of verifier.proto's Logprobs, by their names there."""

    chosen: bytes
    top_tokens: bytes
    top: bytes


def pack_logprobs(logprobs: Sequence[TokenLogprob]) -> PackedLogprobs:
    """Raises Violation for a token id that does not fit the wire."""
    top = [one for entry in logprobs for one in entry.top]
    return PackedLogprobs(
        chosen=pack_floats([entry.logprob for entry in logprobs]),
        top_tokens=pack_tokens([token for token, _ in top]),
        top=pack_floats([logprob for _, logprob in top]),
    )


def unpack_logprobs(packed: PackedLogprobs) -> tuple[TokenLogprob, ...]:
    """Unpack what pack_logprobs packed. Raises Violation for lengths that do not agree or values out of range."""
    num_places = len(packed.chosen) // FLOAT_BYTES
    if not 1 <= num_places <= MAX_NODES + 1:
        raise _malformed(f"log probabilities of {num_places} tokens: need 1 to {MAX_NODES + 1}")
    if len(packed.top_tokens) + len(packed.top) > num_places * MAX_TOP_LOGPROBS * (TOKEN_BYTES + FLOAT_BYTES):
        raise _malformed(f"more than {MAX_TOP_LOGPROBS} tokens in each of {num_places} places")
    # Unpacked only after these checks: as Python numbers they take ten times the memory.
    chosen, tokens, logprobs = unpack_floats(packed.chosen), unpack_tokens(packed.top_tokens), unpack_floats(packed.top)
    num_top = len(tokens) // num_places
    if num_top > MAX_TOP_LOGPROBS or not len(tokens) == len(logprobs) == num_top * num_places:
        raise _malformed(f"{len(tokens)} tokens and {len(logprobs)} log probabilities in the places of {num_places}")
    top = tuple(zip(tokens, logprobs, strict=True))
    return tuple(TokenLogprob(own, top[i * num_top : (i + 1) * num_top]) for i, own in enumerate(chosen))


def _malformed(message: str) -> Violation:
    return Violation(Reason.MALFORMED_FRAME, message)
