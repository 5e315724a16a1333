"""Whether a head fits its target. A head for another model, or one read in a wrong layout, loads without complaint and
drafts nonsense: its likeliest token is then the target's no more often than by luck. Pure.

Of 64 verdicts a head that is right one time in ten, which hardly pays, is taken for one at chance with probability 1 %.
"""

from __future__ import annotations

from collections import Counter

NUM_VERDICTS = 64
CHANCE = 0.02  # of large vocabularies; of small ones twice their chance


class AcceptanceCheck:
    """Counts over all answers of a client, head by head, and says it once."""

    def __init__(self, vocab_size: int) -> None:
        self._luck = max(CHANCE, 2 / vocab_size)
        self._verdicts: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()

    def judged(self, head: str, likeliest: int, verdict: int) -> str | None:
        """A head's likeliest first token and the target's; a warning where the head is at chance."""
        self._verdicts[head] += 1
        self._hits[head] += likeliest == verdict
        if self._verdicts[head] != NUM_VERDICTS or self._hits[head] > self._luck * NUM_VERDICTS:
            return None
        return (
            f"drafter {head}: its likeliest token was the target's in {self._hits[head]} of {NUM_VERDICTS} verdicts,"
            " which is luck. Check that it was made for this target, and what its files may leave open: layout,"
            " RoPE base, tapped layers"
        )
