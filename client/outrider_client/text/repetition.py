"""Tells where an answer goes round in circles. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_TIMES = 3
_LEAST = 64  # tokens of a circle in all: what somebody may ask for, such as a line of zeros or dashes, is shorter
_PHRASE = 8  # tokens; a drafter's circles vary between them


def goes_in_circles(tokens: Sequence[int]) -> bool:
    """Return whether the text ends in a block that stands there three times in a row or more, in 64 tokens or more."""
    end = len(tokens)
    for size in range(1, end // _TIMES + 1):
        length = max(_TIMES * size, _LEAST)
        if length <= end and all(tokens[at] == tokens[at - size] for at in range(end - 1, end - length + size - 1, -1)):
            return True
    return False


def repeats_a_phrase(tokens: Sequence[int]) -> bool:
    """Return whether the last eight tokens stand there three times, wherever: as a drafter alone ends up."""
    phrase, starts = list(tokens[-_PHRASE:]), range(len(tokens) - _PHRASE + 1)
    return sum(list(tokens[start : start + _PHRASE]) == phrase for start in starts) >= _TIMES
