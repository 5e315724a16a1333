"""A worse drafter made from a tape: at some tokens of the answer its right guesses become wrong.

Which tokens are hard is drawn from the seed, each with probability `share`. Wherever the target's token at such a
position was guessed, it moves down the list to rank breadth + k with probability 2^-(k + 1): below all that is drafted,
but not below all that may be predicted as a bonus. Probabilities keep their ranks, so that the drafter is as confident
as before. Trees keep their sizes and times; tau falls with the share.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider_bench.virtual.tape import Guess, Tape, TapedAnswer, TapedPosition, TokenPath
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Thinning:
    """The share of the answer's tokens that the drafter misses. Raises UsageError unless it is 0 to 1."""

    share: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"thin={self.share:g}: need 0 to 1")


def thinned(tape: Tape, thinning: Thinning) -> Tape:
    """Return the tape that a worse drafter would have made."""
    if not thinning.share:
        return tape
    return replace(tape, recordings=tuple(_thinned(each, tape.breadth, thinning) for each in tape.recordings))


def _thinned(recording: TapedAnswer, breadth: int, thinning: Thinning) -> TapedAnswer:
    ranks = [_rank(recording.name, number, breadth, thinning) for number in range(len(recording.answer))]

    def harder(positions: Sequence[TapedPosition]) -> tuple[TapedPosition, ...]:
        return tuple(
            _thinned_position(position, recording.answer, root, ranks) for root, position in enumerate(positions)
        )

    late = {lag: harder(positions) for lag, positions in recording.late.items()}
    return replace(recording, positions=harder(recording.positions), late=late)


def _rank(name: str, number: int, breadth: int, thinning: Thinning) -> int | None:
    """Return the rank that this token of the answer moves to, or None where it stays."""
    # One generator per token: which tokens are hard must not depend on order or on other answers.
    generator = random.Random(f"{thinning.seed}/{name}/{number}")
    if generator.random() >= thinning.share:
        return None
    rank = breadth
    while generator.random() < 0.5:
        rank += 1
    return rank


def _thinned_position(position: TapedPosition, answer: TokenPath, root: int, ranks: list[int | None]) -> TapedPosition:
    """Demote the hard tokens along the answer, from its token `root` on."""
    changed = {}
    for following in range(root + 1, len(answer)):
        path = answer[root + 1 : following]
        if path not in position.guesses:
            break
        rank = ranks[following]
        if rank is not None:
            changed[path] = _demoted(position.guesses[path], answer[following], rank)
    return TapedPosition({**position.guesses, **changed}) if changed else position


def _demoted(guess: Guess, token: int, rank: int) -> Guess:
    if token not in guess.tokens[:rank]:
        return guess
    others = [other for other in guess.tokens if other != token]
    return replace(guess, tokens=(*others[:rank], token, *others[rank:]))
