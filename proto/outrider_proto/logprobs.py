"""How likely a verdict's tokens are, as bytes: the tokens' own values, then the likeliest tokens in the place of each
and theirs, as many in every place. It knows no protobuf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import MAX_TOP_LOGPROBS, Likelihood
from outrider_proto.packing import FLOAT_BYTES, TOKEN_BYTES, pack_floats, pack_tokens, unpack_floats, unpack_tokens
from outrider_proto.tree import MAX_NODES


class PackedLikelihoods(NamedTuple):
    """Named as the fields of verifier.proto's Logprobs."""

    chosen: bytes
    top_tokens: bytes
    top: bytes


def pack_likelihoods(likelihoods: Sequence[Likelihood]) -> PackedLikelihoods:
    """Raises Violation for a token id that does not fit the wire."""
    top = [one for likelihood in likelihoods for one in likelihood.top]
    return PackedLikelihoods(
        chosen=pack_floats([likelihood.logprob for likelihood in likelihoods]),
        top_tokens=pack_tokens([token for token, _ in top]),
        top=pack_floats([logprob for _, logprob in top]),
    )


def unpack_likelihoods(packed: PackedLikelihoods) -> tuple[Likelihood, ...]:
    """Inverse of pack_likelihoods. Raises Violation for lengths that do not agree, and for values out of range."""
    num_places = len(packed.chosen) // FLOAT_BYTES
    if not 1 <= num_places <= MAX_NODES + 1:
        raise _malformed(f"log probabilities of {num_places} tokens: need 1 to {MAX_NODES + 1}")
    if len(packed.top_tokens) + len(packed.top) > num_places * MAX_TOP_LOGPROBS * (TOKEN_BYTES + FLOAT_BYTES):
        raise _malformed(f"more than {MAX_TOP_LOGPROBS} tokens in each of {num_places} places")
    # Only now made into Python's numbers, which are ten times as large.
    chosen, tokens, logprobs = unpack_floats(packed.chosen), unpack_tokens(packed.top_tokens), unpack_floats(packed.top)
    num_top = len(tokens) // num_places
    if num_top > MAX_TOP_LOGPROBS or not len(tokens) == len(logprobs) == num_top * num_places:
        raise _malformed(f"{len(tokens)} tokens and {len(logprobs)} log probabilities in the places of {num_places}")
    top = tuple(zip(tokens, logprobs, strict=True))
    return tuple(Likelihood(own, top[i * num_top : (i + 1) * num_top]) for i, own in enumerate(chosen))


def _malformed(message: str) -> Violation:
    return Violation(Reason.MALFORMED_FRAME, message)
