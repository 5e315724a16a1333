"""Private parts of a prompt: fences in plain text, private files after it, and what the detector finds.

A fence reads `call <<private: Ann>>`, or with its kind `write to <<EMAIL: ann@example.org>>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from outrider_client.core.prompt import DEFAULT_KIND, Prompt, Segment, as_content, has_private, segments_of
from outrider_proto.errors import UsageError
from outrider_proto.files import read_text

Place = tuple[str | int, ...]  # names and numbers that lead to a value in JSON
OPEN, ESCAPED = "<<", "\\<<"
MAX_CHARS = 2**19  # of an app's text: the interpreter does nothing else while an expression reads on
_OPENING = r"<<(?:private|[A-Z][A-Z0-9_]+):(?=\s)"
# page/fences.js holds the same expressions. Shifts, streams and heredocs are text. What looks like a fence and is none
# is refused: read as text it would be sent, and read as a fence it would silently change who answers.
MARK = re.compile(
    r"(?P<escaped>\\<<)"
    r"|(?P<code>(?<![^\n])[ \t]*(?P<block>`{3,}|~{3,})[^\n`]*(?:\n(?![ \t]*(?P=block))[^\n]*)*(?:\n[ \t]*(?P=block))?"
    r"|(?<!`)(?P<ticks>`+))"  # which _tick_ends follow: an expression that looks for each end takes n^1.5 steps
    r"|<<(?P<label>private|[A-Z][A-Z0-9_]+):(?=\s)(?P<inner>(?:(?!>>)[\s\S])*)(?P<close>>>)?"
    # A label that is spelled or spaced otherwise, or the form without a label where no operator could stand.
    r"|(?P<meant><<[ \t]*(?:[Pp]rivate|[A-Z][A-Z0-9_]+):(?!:)(?=(?:(?!<<|>>)[\s\S])*>>)"
    r"|(?<![<A-Za-z0-9_)\]])<<(?![\s<>=])(?:(?!<<|>>)[\s\S])*(?<![\s<])>>(?![A-Za-z0-9_(=>]))"
)
_ESCAPED_OPENING = re.compile(
    r"(?:(?<!\\)\\+u003[cC]\\+u003[cC]|(?:&(?:lt|#60|#x3c);|%3[cC]){2})[ \t]*(?:[Pp]rivate|[A-Z][A-Z0-9_]+):(?!:)"
)
_RUN = re.compile(r"`+|\n")


def parse_fences(text: str) -> tuple[Segment, ...]:
    r"""Return safe and private segments in order; `\<<` stands for `<<`, and any other `<<` and `>>` for themselves.

    Raises UsageError for a fence that is not closed, is empty, contains another one, or stands inside code (Markdown's
    backticks), and for what is plainly meant as one. The message says where.
    """
    if (escaped := _ESCAPED_OPENING.search(text)) is not None:
        raise _misplaced(text, escaped.start(), "is not read where it is escaped: write it as it is")
    if OPEN not in text:
        return (Segment(text),) if text else ()
    segments: list[Segment] = []
    safe, end, tick_ends = "", 0, _tick_ends(text)
    while (mark := MARK.search(text, end)) is not None:
        safe += text[end : mark.start()]
        end = mark.end() if mark["ticks"] is None else tick_ends.get(mark.start(), mark.end())
        if mark["label"] is None:
            safe += _as_text(mark, end)
            continue
        segments += [*([Segment(safe)] if safe else []), _private(mark)]
        safe = ""
    safe += text[end:]
    return (*segments, *([Segment(safe)] if safe else []))


def _tick_ends(text: str) -> Mapping[int, int]:
    """By the start of a run of backticks the end of the next one on its line that is as long."""
    ends: dict[int, int] = {}
    latest: dict[int, int] = {}  # run by its length
    for run in _RUN.finditer(text):
        if run[0] == "\n":
            latest.clear()
            continue
        size = run.end() - run.start()
        if size in latest:
            ends[latest[size]] = run.end()
        latest[size] = run.start()
    return ends


def _as_text(mark: re.Match[str], end: int) -> str:
    if mark["meant"] is not None:
        raise _misplaced(
            mark.string,
            mark.start(),
            f"is not read: write <<private: ...>> or <<EMAIL: ...>>, or {ESCAPED} for the characters",
        )
    text = mark.string[mark.start() : end]
    if mark["code"] is not None and (within := re.search(r"(?<!\\)" + _OPENING, text)) is not None:
        at = mark.start() + within.start()
        raise _misplaced(mark.string, at, f"is not read inside code: move it out of the backticks, or write {ESCAPED}")
    return text.replace(ESCAPED, OPEN)


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


def find_fence(value: object, is_read: Callable[[Place], bool]) -> Place | None:
    """Return the place of the first text in JSON that could be meant as a fence, and that nothing reads as one.

    `is_read`: whether the text at a place is read. Names are looked at as well, and JSON in text.
    """
    texts = ((where, text) for where, text in _texts(value, ()) if not is_read(where))
    return next((where for where, text in texts if _has_fence(text)), None)


def _texts(value: object, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield all texts in JSON with their places."""
    match value:
        case Mapping():
            for name, each in value.items():
                yield place, str(name)
                yield from _texts(each, (*place, str(name)))
        case list():
            for number, each in enumerate(value):
                yield from _texts(each, (*place, number))
        case str():
            yield place, value
            # Arguments of a call are JSON in a text, which can spell `<` otherwise.
            if value.lstrip()[:1] in tuple('{["') and "\\" in value:
                with suppress(ValueError, RecursionError):
                    yield from ((place, text) for _, text in _texts(json.loads(value), ()))


def _has_fence(text: str) -> bool:
    try:
        return OPEN in text and (len(text) > MAX_CHARS or has_private(parse_fences(text)))
    except UsageError:
        return True


def parse_prompt(
    text: str, files: Sequence[Path] = (), *, fences: bool = True, detect: bool = False
) -> str | tuple[Segment, ...]:
    """Return a command's prompt as segments, or as plain text if nothing is private. Raises UsageError."""
    segments = parse_fences(text) if fences else (Segment(text),)
    if detect:
        from outrider_client.privacy.detector import Detector

        segments = Detector().mark(segments)
    for file in files:
        segments += (*((Segment("\n\n"),) if segments else ()), Segment(read_text(file, "private"), private=True))
    return as_content(segments)


def private_kinds(prompt: Prompt) -> list[str]:
    """Return the kinds of the private segments in order."""
    return [segment.kind or DEFAULT_KIND for segment in segments_of(prompt) if segment.private]
