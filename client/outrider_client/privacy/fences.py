"""Private parts of a prompt: fences in plain text, private files after it, and what the detector finds.

A fence reads `call <<Ann>>`, or with its kind `write to <<EMAIL: ann@example.org>>`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from outrider_client.core.prompt_segments import DEFAULT_KIND, Segment, as_segments
from outrider_proto.errors import UsageError

OPEN, CLOSE = "<<", ">>"
ESCAPED = "\\<<"
_MARK = re.compile(r"\\<<|<<|>>")
_WITH_KIND = re.compile(r"([A-Z][A-Z0-9_]*):\s*(.*\S)\s*", re.DOTALL)


def parse_fences(text: str) -> tuple[Segment, ...]:
    r"""Return safe and private segments in order; `\<<` stands for `<<`, and `>>` outside a fence for itself.

    Raises UsageError for a fence that is not closed, is empty or contains another one; the message says where.
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


_BETWEEN = Segment("\n\n")


def parse_prompt(
    text: str, files: Sequence[Path] = (), *, fences: bool = True, detect: bool = False
) -> str | tuple[Segment, ...]:
    """Return a command's prompt as segments, or as plain text if nothing is private. Raises UsageError."""
    segments = parse_fences(text) if fences else (Segment(text),)
    if detect:
        from outrider_client.privacy.detector import Detector

        segments = Detector().mark(segments)
    for file in files:
        segments += (*((_BETWEEN,) if segments else ()), Segment(read_private_file(file), private=True))
    if not any(segment.private for segment in segments):
        return "".join(segment.text for segment in segments)
    return segments


def private_kinds(prompt: str | Sequence[Segment]) -> list[str]:
    """Return the kinds of the private segments in order."""
    return [segment.kind or DEFAULT_KIND for segment in as_segments(prompt) if segment.private]


def read_private_file(file: Path) -> str:
    """Return a private file's text. Raises UsageError, which never quotes the text."""
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"private={file}: {error.strerror}") from error
    except UnicodeDecodeError:
        # `from None`: the decoder's error holds the private bytes.
        raise UsageError(f"private={file}: not UTF-8 text") from None
