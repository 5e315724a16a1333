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
        raise _misfit(f"log probabilities of {len(logprobs)} tokens in a verdict that should have {expected}")
    for entry in logprobs:
        _check(entry, min(num_top or 0, vocab_size), vocab_size)
    return tuple(TokenLogprobs(token, entry.logprob, entry.top) for token, entry in zip(tokens, logprobs, strict=False))


def _check(entry: TokenLogprob, num_top: int, vocab_size: int) -> None:
    if len(entry.top) != num_top:
        raise _misfit(f"{len(entry.top)} likeliest tokens where {num_top} were requested")
    for token, _ in entry.top:
        if not 0 <= token < vocab_size:
            raise _misfit(f"token {token} among the likeliest: the vocabulary has {vocab_size}")


def _misfit(message: str) -> Violation:
    return Violation(Reason.MALFORMED_FRAME, message)
