"""Choose a head by the words of a text, from a list of words per head.

A TOML or JSON file holds the lists by head name:

    math = ["solve", "equation", "how many"]
    chat = ["tell me"]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider_proto.errors import UsageError
from outrider_proto.files import parse_json, parse_toml, read_regular


@dataclass(frozen=True, slots=True)
class Keywords:
    """Words or phrases by head name. Raises UsageError if there is none, or an empty one."""

    words: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        if not any(self.words.values()):
            raise UsageError("keywords: need at least one word for one head")
        if any(not word.strip() for words in self.words.values() for word in words):
            raise UsageError("keywords: a word is empty")

    @classmethod
    def load(cls, path: str | Path) -> Keywords:
        """Load a TOML or JSON file with lists of words by head name. Raises UsageError."""
        path = Path(path)
        parsers = {".toml": parse_toml, ".json": parse_json}
        if path.suffix not in parsers:
            raise UsageError(f"keywords {path}: need a .toml or .json file")
        name = f"keywords {path}"
        return cls(_checked(parsers[path.suffix](read_regular(path, name=name), name), path))

    def for_heads(self, names: Sequence[str]) -> KeywordRule:
        """Make the rule for heads of these names. Raises UsageError for words of an unknown head."""
        if unknown := sorted(set(self.words) - set(names)):
            raise UsageError(f"keywords: no head is called {', '.join(unknown)}; there are {', '.join(names)}")
        return KeywordRule(tuple(_pattern(self.words.get(name, ())) for name in names))


@dataclass(frozen=True, slots=True)
class KeywordRule:
    """One pattern per head."""

    patterns: tuple[re.Pattern[str], ...]

    def choose(self, text: str, current: int) -> int:
        """Return the head whose words occur most often; of equals the current one, then the first."""
        counts = [sum(1 for _ in pattern.finditer(text)) for pattern in self.patterns]
        return current if counts[current] == max(counts) else counts.index(max(counts))


def _pattern(words: Sequence[str]) -> re.Pattern[str]:
    """Match any of the words, ignoring case."""
    # Longest first: an alternation takes the first match, so "sum" before "sum of" would hide the phrase.
    longest_first = sorted((word.strip() for word in words), key=len, reverse=True)
    return re.compile("|".join(map(_whole, longest_first)) or r"(?!)", re.IGNORECASE)


def _whole(word: str) -> str:
    """Match a word or phrase with word boundaries, but none at an end that is not a letter or digit, such as `=`."""
    first, last = (r"\b" if end.isalnum() else "" for end in (word[0], word[-1]))
    return first + r"\s+".join(map(re.escape, word.split())) + last


def _checked(value: object, path: Path) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not all(
        isinstance(words, list) and all(isinstance(word, str) for word in words) for words in value.values()
    ):
        raise UsageError(f"keywords {path}: need lists of words by head name")
    return {name: tuple(words) for name, words in value.items()}
