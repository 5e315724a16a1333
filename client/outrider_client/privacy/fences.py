"""Private parts of a prompt: fences in plain text, private files after it, and what the detector finds.

A fence reads `call <<private: Ann>>`, or with its kind `write to <<EMAIL: ann@example.org>>`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from outrider_client.core.prompt import DEFAULT_KIND, Prompt, Segment, as_content, segments_of
from outrider_proto.errors import UsageError

OPEN, ESCAPED = "<<", "\\<<"
_OPENING = r"<<(?:private|[A-Z][A-Z0-9_]+):(?=\s)"
# page/fences.js holds the same expressions. Shifts, streams and heredocs are text. What looks like a fence and is none
# is refused: read as text it would be sent, and read as a fence it would silently change who answers.
MARK = re.compile(
    r"(?P<escaped>\\<<)"
    r"|(?P<code>(?<![^\n])[ \t]*(?P<block>`{3,}|~{3,})[^\n`]*(?:\n(?![ \t]*(?P=block))[^\n]*)*(?:\n[ \t]*(?P=block))?"
    r"|(?<!`)(?P<ticks>`+)(?!`)[^\n]*?(?<!`)(?P=ticks)(?!`))"
    r"|<<(?P<label>private|[A-Z][A-Z0-9_]+):(?=\s)(?P<inner>(?:(?!>>)[\s\S])*)(?P<close>>>)?"
    # A label that is spelled or spaced otherwise, or the form without a label where no operator could stand.
    r"|(?P<meant><<[ \t]*(?:[Pp]rivate|[A-Z][A-Z0-9_]+):(?!:)(?=(?:(?!<<|>>)[\s\S])*>>)"
    r"|(?<![<A-Za-z0-9_)\]])<<(?![\s<>=])(?:(?!<<|>>)[\s\S])*(?<![\s<])>>(?![A-Za-z0-9_(=>]))"
)


def parse_fences(text: str) -> tuple[Segment, ...]:
    r"""Return safe and private segments in order; `\<<` stands for `<<`, and any other `<<` and `>>` for themselves.

    Raises UsageError for a fence that is not closed, is empty, contains another one, or stands inside code (Markdown's
    backticks), and for what is plainly meant as one. The message says where.
    """
    segments: list[Segment] = []
    safe, end = "", 0
    for mark in MARK.finditer(text):
        safe += text[end : mark.start()]
        end = mark.end()
        if mark["label"] is None:
            safe += _as_text(mark)
            continue
        segments += [*([Segment(safe)] if safe else []), _private(mark)]
        safe = ""
    safe += text[end:]
    return (*segments, *([Segment(safe)] if safe else []))


def _as_text(mark: re.Match[str]) -> str:
    if mark["meant"] is not None:
        raise _misplaced(
            mark.string,
            mark.start(),
            f"is not read: write <<private: ...>> or <<EMAIL: ...>>, or {ESCAPED} for the characters",
        )
    if mark["code"] is not None and (within := re.search(r"(?<!\\)" + _OPENING, mark["code"])) is not None:
        at = mark.start() + within.start()
        raise _misplaced(mark.string, at, f"is not read inside code: move it out of the backticks, or write {ESCAPED}")
    return mark.group().replace(ESCAPED, OPEN)


def _private(mark: re.Match[str]) -> Segment:
    if mark["close"] is None:
        what = f"does not close: end it with >>, or write {ESCAPED} for the characters"
        raise _misplaced(mark.string, mark.start(), what)
    if re.search(_OPENING, mark["inner"]):
        raise _misplaced(mark.string, mark.start(), "has another one within: close it first")
    inner = mark["inner"].strip()
    if not inner:
        raise _misplaced(mark.string, mark.start(), "holds nothing: put the private text between its marks")
    return Segment(inner, True, None if mark["label"] == "private" else mark["label"])


def _misplaced(text: str, at: int, what: str) -> UsageError:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return UsageError(f"line {line}, column {column}: private marker {OPEN} {what}")


def parse_prompt(
    text: str, files: Sequence[Path] = (), *, fences: bool = True, detect: bool = False
) -> str | tuple[Segment, ...]:
    """Return a command's prompt as segments, or as plain text if nothing is private. Raises UsageError."""
    segments = parse_fences(text) if fences else (Segment(text),)
    if detect:
        from outrider_client.privacy.detector import Detector

        segments = Detector().mark(segments)
    for file in files:
        segments += (*((Segment("\n\n"),) if segments else ()), Segment(read_prompt_file(file), private=True))
    return as_content(segments)


def private_kinds(prompt: Prompt) -> list[str]:
    """Return the kinds of the private segments in order."""
    return [segment.kind or DEFAULT_KIND for segment in segments_of(prompt) if segment.private]


def read_prompt_file(file: Path, option: str = "private") -> str:
    """Return the text of a file that an option names. Raises UsageError, which never quotes the text."""
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{option}={file}: {error.strerror}") from error
    except UnicodeDecodeError:
        # `from None`: the decoder's error holds the bytes, which may be private.
        raise UsageError(f"{option}={file}: not UTF-8 text") from None
