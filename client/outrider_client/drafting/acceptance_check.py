"""Checks whether a head fits its target. Pure.

A head for another model, or one read in a wrong layout, loads without an error and drafts nonsense: its likeliest token
is the target's no more often than by chance. Over 64 verdicts, a head that is right one time in ten, which hardly pays,
is reported as at chance with probability 1 %.
"""

from __future__ import annotations

from collections import Counter

NUM_VERDICTS = 64
CHANCE = 0.02  # with large vocabularies; with small ones twice the chance of a uniform guess


class AcceptanceCheck:
    """Counts hits per head over all answers of a client, and warns once."""

    def __init__(self, vocab_size: int) -> None:
        self._chance = max(CHANCE, 2 / vocab_size)
        self._verdicts: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()

    def judged(self, head: str, likeliest: int, verdict: int) -> str | None:
        """Count a head's likeliest first token against the target's; return a warning if the head is at chance."""
        self._verdicts[head] += 1
        self._hits[head] += likeliest == verdict
        if self._verdicts[head] != NUM_VERDICTS or self._hits[head] > self._chance * NUM_VERDICTS:
            return None
        return (
            f"drafter {head}: its likeliest token was the target's in {self._hits[head]} of {NUM_VERDICTS} verdicts,"
            " which is chance. Check that it was made for this target, and what its files may not state: layout,"
            " RoPE base, tapped layers"
        )
