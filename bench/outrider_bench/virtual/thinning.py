"""A worse drafter made of a tape: what it would have guessed right, it guesses wrong at some tokens of the answer.

Which tokens are hard is drawn from the seed, each with probability `share`. Wherever the target's token at such a place
was guessed, in whatever draft, it moves down the list, to rank breadth + k with probability 2^-(k + 1): below all that
is drafted, not below all that may be foreseen as a bonus. The probabilities stay where they were, by rank, so the
drafter is as sure of itself as before. Trees keep their sizes and times; tau falls with the share.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider_bench.virtual.tape import Guess, Tape, TapedAnswer, TapedPosition, TokenPath
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Thinning:
    """`share` of the answer's tokens that the drafter does not guess; raises UsageError unless it is 0 to 1."""

    share: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"thin={self.share:g}: need 0 to 1")


def thinned(tape: Tape, thinning: Thinning) -> Tape:
    """The tape as a worse drafter would have made it."""
    if not thinning.share:
        return tape
    return replace(tape, recordings=tuple(_thinned(each, tape.breadth, thinning) for each in tape.recordings))


def _thinned(recording: TapedAnswer, breadth: int, thinning: Thinning) -> TapedAnswer:
    ranks = [_rank(recording.name, number, breadth, thinning) for number in range(len(recording.answer))]

    def harder(places: Sequence[TapedPosition]) -> tuple[TapedPosition, ...]:
        return tuple(_harder(place, recording.answer, root, ranks) for root, place in enumerate(places))

    late = {lag: harder(places) for lag, places in recording.late.items()}
    return replace(recording, places=harder(recording.places), late=late)


def _rank(name: str, number: int, breadth: int, thinning: Thinning) -> int | None:
    """Where the answer's token of this number goes, or None where it stays."""
    generator = random.Random(f"{thinning.seed}/{name}/{number}")
    if generator.random() >= thinning.share:
        return None
    rank = breadth
    while generator.random() < 0.5:
        rank += 1
    return rank


def _harder(place: TapedPosition, answer: TokenPath, root: int, ranks: list[int | None]) -> TapedPosition:
    """Along the answer from its token `root` on."""
    changed = {}
    for following in range(root + 1, len(answer)):
        path = answer[root + 1 : following]
        if path not in place.guesses:
            break
        rank = ranks[following]
        if rank is not None:
            changed[path] = _demoted(place.guesses[path], answer[following], rank)
    return TapedPosition({**place.guesses, **changed}) if changed else place


def _demoted(guess: Guess, token: int, rank: int) -> Guess:
    if token not in guess.tokens[:rank]:
        return guess
    others = [other for other in guess.tokens if other != token]
    return replace(guess, tokens=(*others[:rank], token, *others[rank:]))
