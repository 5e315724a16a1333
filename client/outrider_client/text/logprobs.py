"""Log probabilities of tokens under the target: a verdict's values joined with their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import TokenLogprob


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """ln p of a token under the target's plain softmax: before temperature, top-k and top-p, whatever was drafted.

    `top`: the likeliest tokens at its position with their ln p, the likeliest first. No value is below -9999.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(
    tokens: Sequence[int], logprobs: Sequence[TokenLogprob], num_top: int | None, vocab_size: int
) -> tuple[TokenLogprobs, ...]:
    """Return a verdict's log probabilities; `num_top` was requested. Raises Violation if something else arrived."""
    expected = 0 if num_top is None else len(tokens)
    if len(logprobs) != expected:
        raise misfit(f"log probabilities of {len(logprobs)} tokens in a verdict that should have {expected}")
    num_likeliest = min(num_top or 0, vocab_size)
    for entry in logprobs:
        if len(entry.top) != num_likeliest:
            raise misfit(f"{len(entry.top)} likeliest tokens where {num_likeliest} were requested")
        for other, _ in entry.top:
            if not 0 <= other < vocab_size:
                raise misfit(f"token {other} among the likeliest: the vocabulary has {vocab_size}")
    return tuple(TokenLogprobs(token, entry.logprob, entry.top) for token, entry in zip(tokens, logprobs, strict=False))


def misfit(message: str) -> Violation:
    """Return the error of a verdict that does not fit its request."""
    return Violation(Reason.MALFORMED_FRAME, message)
