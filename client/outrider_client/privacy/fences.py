"""Private parts marked in plain text: `call <<Ann>>`, with their kind `write to <<EMAIL: ann@example.org>>`."""

from __future__ import annotations

import re

from outrider_client.core.prompt_segments import Segment
from outrider_proto.errors import UsageError

OPEN, CLOSE = "<<", ">>"
ESCAPED = "\\<<"
_MARK = re.compile(r"\\<<|<<|>>")
_WITH_KIND = re.compile(r"([A-Z][A-Z0-9_]*):\s*(.*\S)\s*", re.DOTALL)


def parse_fences(text: str) -> tuple[Segment, ...]:
    r"""Safe and private segments in order; `\<<` stands for `<<`, and `>>` without a fence for itself.

    Raises UsageError for a fence that does not close, holds another one, or nothing; the message says where.
    """
    segments: list[Segment] = []
    safe, end = "", 0
    opened: re.Match[str] | None = None
    for mark in _MARK.finditer(text):
        if opened is None:
            safe += text[end : mark.start()]
            end = mark.end()
            if mark.group() == OPEN:
                opened = mark
            else:
                safe += mark.group().removeprefix("\\")
        elif mark.group() == OPEN:
            raise _misplaced(text, mark, "opens within another one: close that first")
        elif mark.group() == CLOSE:
            segments += [Segment(safe)] if safe else []
            segments.append(_private(text, opened, mark))
            safe, end, opened = "", mark.end(), None
    if opened is not None:
        raise _misplaced(text, opened, rf"does not close: end it with {CLOSE}, or write {ESCAPED} for the characters")
    safe += text[end:]
    return (*segments, *([Segment(safe)] if safe else []))


def _private(text: str, opened: re.Match[str], closed: re.Match[str]) -> Segment:
    inner = text[opened.end() : closed.start()]
    if not inner.strip():
        raise _misplaced(text, opened, "holds nothing: put the private text between its marks")
    with_kind = _WITH_KIND.fullmatch(inner)
    return Segment(inner, private=True) if with_kind is None else Segment(with_kind[2], True, with_kind[1])


def _misplaced(text: str, mark: re.Match[str], what: str) -> UsageError:
    line = text.count("\n", 0, mark.start()) + 1
    column = mark.start() - text.rfind("\n", 0, mark.start())
    return UsageError(f"line {line}, column {column}: private marker {OPEN} {what}")
