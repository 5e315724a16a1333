"""Texts that end an answer: where the first of them stands, and what of an end may still become one. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string found at text[start:end]."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StopStrings:
    """Stop strings of a request, none of them empty."""

    texts: tuple[str, ...] = ()

    def find(self, text: str, first: int = 0) -> StopMatch | None:
        """Find the stop string that ends first, however the text was cut; none ends in the first `first` characters."""
        ends = [StopMatch(at, at + len(stop)) for stop in self.texts if (at := self._find(text, stop, first)) >= 0]
        return min(ends, key=lambda found: (found.end, found.start), default=None)

    def num_held(self, text: str) -> int:
        """Number of characters at the end that could be the beginning of a stop string."""
        return max((_overlap(text, stop) for stop in self.texts), default=0)

    @staticmethod
    def _find(text: str, stop: str, first: int) -> int:
        return text.find(stop, max(first - len(stop) + 1, 0))


def _overlap(text: str, stop: str) -> int:
    longest = min(len(stop) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
