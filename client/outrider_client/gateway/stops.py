"""Stop texts in an answer that comes in pieces. Pure.

The stop that ends first counts, as if the text had come character by character, however it was cut into pieces.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """A stop text, from its first character to after its last."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Stops:
    """None is empty."""

    texts: tuple[str, ...] = ()

    def find(self, text: str, first: int = 0) -> Found | None:
        """The stop that ends first after the first characters, which hold the end of none."""
        ends = [Found(at, at + len(stop)) for stop in self.texts if (at := self._find(text, stop, first)) >= 0]
        return min(ends, key=lambda found: (found.end, found.start), default=None)

    def num_held(self, text: str) -> int:
        """So many characters at the end could still begin a stop."""
        return max((_overlap(text, stop) for stop in self.texts), default=0)

    @staticmethod
    def _find(text: str, stop: str, first: int) -> int:
        return text.find(stop, max(first - len(stop) + 1, 0))


def _overlap(text: str, stop: str) -> int:
    longest = min(len(stop) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
