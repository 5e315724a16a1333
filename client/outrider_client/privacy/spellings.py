"""Finds private values in text however they are spelled: escaped as JSON, HTML or URLs have it, once or several times.

A text is read layer by layer, as whoever reads it later may: as it is, then without one layer of escapes, and so on.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

_UNIT = re.compile(
    r"\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u(?P<code>[0-9a-fA-F]{4})|\\(?P<sign>[^\w\s]|[nrtbf])"
    r"|(?P<entity>&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});?)"
    r"|(?P<bytes>(?:%[0-9a-fA-F]{2})+|(?:\\x[0-9a-fA-F]{2})+)"
)
_MAX_LAYERS = 5
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_UNEVEN = re.compile(r"(?! (?![\s+]))[\s+]+|[^\x00-\x7f\s]+")  # not a blank alone, of which texts are full
# Quotation marks and hyphens as word processors write them.
_SIGNS = str.maketrans("\u2018\u2019\u02bc\u201c\u201d\u2010\u2011\u2013", "'''\"\"---")
_FOLDED = frozenset({"EMAIL", "IBAN", "IP"})  # kinds whose values mean the same in capitals; the detector finds both

Piece = tuple[str, int, int]  # a text, and what it is read from


@dataclass(frozen=True, slots=True)
class _Reading:
    """A text as it reads, and where each of its characters stands in the text that is replaced in."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def of(cls, text: str) -> _Reading:
        return cls(text, range(len(text)), range(1, len(text) + 1))

    def rewritten(self, unit: re.Pattern[str], meaning: Callable[[re.Match[str]], Iterator[Piece]]) -> _Reading:
        """Return the reading with what each unit means, in pieces, in its place."""
        texts: list[str] = []
        starts, ends = array("q"), array("q")  # a text may have millions of characters
        at = 0

        def keep(until: int) -> None:
            texts.append(self.text[at:until])
            starts.extend(self.starts[at:until])
            ends.extend(self.ends[at:until])

        for match in unit.finditer(self.text):
            keep(match.start())
            for text, start, end in meaning(match):
                texts.append(text)
                starts.extend([self.starts[start]] * len(text))
                ends.extend([self.ends[end - 1]] * len(text))
            at = match.end()
        keep(len(self.text))
        return _Reading("".join(texts), starts, ends)


@dataclass(frozen=True, slots=True)
class PrivateValue:
    """A value to be found, and what stands for it."""

    value: str
    placeholder: str

    @property
    def is_folded(self) -> bool:
        return self.placeholder[1:].rpartition("_")[0] in _FOLDED


def without(text: str, values: Sequence[PrivateValue], *, whole_words: bool) -> str:
    """Return a text with the placeholders of values in their place."""
    # A value that looks escaped itself is read as far as the text.
    sought = dict.fromkeys((_even(reading).text.strip(), each) for each in values for reading in _readings(each.value))
    spans: list[tuple[int, int, str]] = []
    for reading in _readings(text):
        even = _even(reading)
        folded = _folded(even.text) if any(each.is_folded for each in values) else even.text
        for value, each in sought:
            where, what = (folded, _folded(value)) if each.is_folded else (even.text, value)
            last = len(what) - 1
            places = _places(where, what, whole_words=whole_words)
            spans += [(even.starts[at], even.ends[at + last], each.placeholder) for at in places]
    return _replaced(text, spans)


def _replaced(text: str, spans: list[tuple[int, int, str]]) -> str:
    """Replace spans; those that overlap are one, by the name of the longest."""
    parts: list[str] = []
    kept = 0
    spans.sort(key=lambda span: (span[0], -span[1]))
    for number, (start, end, name) in enumerate(spans):
        if start >= kept or number == 0:
            parts += [text[kept:start], name]
        kept = max(kept, end)
    return "".join((*parts, text[kept:]))


def _places(text: str, value: str, *, whole_words: bool) -> Iterator[int]:
    """Yield where a value stands, as whole words or anywhere."""
    at = text.find(value) if value else -1
    while at >= 0:
        end = at + len(value)
        begun, goes_on = _is_in_word(text[at - 1 : at + 1] if at else ""), _is_in_word(text[end - 1 : end + 1])
        if not (whole_words and (begun or goes_on)):
            yield at
        at = text.find(value, at + 1)


def _is_in_word(around: str) -> bool:
    """Return whether no word ends between two characters. Letters without case stand in scripts without blanks."""
    return len(around) == 2 and all(char.isalnum() and unicodedata.category(char) != "Lo" for char in around)


def _readings(text: str) -> Iterator[_Reading]:
    reading = _Reading.of(text)
    yield reading
    for _ in range(_MAX_LAYERS):
        if _UNIT.search(reading.text) is None:
            return
        reading = reading.rewritten(_UNIT, _meaning)
        yield reading


def _meaning(unit: re.Match[str]) -> Iterator[Piece]:
    if unit["bytes"] is not None:
        yield from _from_bytes(unit)
        return
    if unit["low"] is not None:
        text = bytes.fromhex(unit["high"] + unit["low"]).decode("utf-16-be")
    elif unit["code"] is not None:
        text = chr(int(unit["code"], 16))
    elif unit["entity"] is not None:
        text = unescape(unit["entity"])
    else:
        text = _CONTROLS.get(unit["sign"], unit["sign"])
    yield text, unit.start(), unit.end()


def _from_bytes(unit: re.Match[str]) -> Iterator[Piece]:
    """Yield the characters of escaped UTF-8; a byte that is none is one of Latin-1."""
    at, escape = unit.start(), "%" if unit[0][0] == "%" else "\\x"
    for char in bytes.fromhex(unit[0].replace(escape, "")).decode(errors="surrogateescape"):
        data = char.encode(errors="surrogateescape")
        end = at + (len(escape) + 2) * len(data)
        yield chr(data[0]) if "\udc80" <= char <= "\udcff" else char, at, end
        at = end


def _even(reading: _Reading) -> _Reading:
    """Return a reading in one form of Unicode without what is not seen, with a blank for blanks and the `+` of URLs."""
    return reading if _UNEVEN.search(reading.text) is None else reading.rewritten(_UNEVEN, _evened)


def _evened(unit: re.Match[str]) -> Iterator[Piece]:
    if unit[0][0].isspace() or unit[0][0] == "+":
        yield " ", unit.start(), unit.end()
        return
    for at, char in enumerate(unit[0], unit.start()):
        is_seen = unicodedata.category(char) != "Cf"
        yield unicodedata.normalize("NFKD", char.translate(_SIGNS)) if is_seen else "", at, at + 1


def _folded(text: str) -> str:
    """Return a text in small letters, as long as it is."""
    return "".join(small if len(small := char.lower()) == 1 else char for char in text)


def in_json(value: Any, change: Callable[[str], str]) -> Any:  # Any: whatever JSON holds
    """Return JSON with each of its texts changed, names as well."""
    match value:
        case str():
            return change(value)
        case Mapping():
            return {change(str(name)): in_json(each, change) for name, each in value.items()}
        case list() | tuple():
            return [in_json(each, change) for each in value]
        case int() | float() if (changed := change(str(value))) != str(value):
            return changed
        case _:
            return value
