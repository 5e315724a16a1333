"""Replaces what would steer a terminal, reorder its lines, or hide in them.

control characters, escape sequences    �, but newline and tab of a text of several lines
separators of lines and paragraphs      �
bidirectional embeddings, overrides,    �: the letters stand in the order in which they were written. Arabic and
  isolates                                Hebrew need none of them, since a terminal orders such letters itself
characters that no terminal shows:      left out: emoji keep their joiners, Persian its non-joiners
  tags, zero-width spaces
bidirectional marks                     kept in a text; � in a line, where they would reorder its other parts
"""

from __future__ import annotations

import logging
import sys

_REPLACED = "\N{REPLACEMENT CHARACTER}"
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_EMBEDDINGS = (*range(0x202A, 0x202F), *range(0x2066, 0x2070))
_UNSEEN = (0x200B, 0x180E, *range(0x2060, 0x2066), 0xFEFF, *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080))
_TEXT: dict[int, str | None] = dict.fromkeys((*_CONTROLS, *_EMBEDDINGS), _REPLACED)
_TEXT |= dict.fromkeys(_UNSEEN) | {ord(kept): kept for kept in "\n\t"}
_LINE = _TEXT | dict.fromkeys((0x061C, 0x200E, 0x200F), _REPLACED) | dict.fromkeys(map(ord, "\n\t"), " ")


def printable(text: str) -> str:
    """Return text of any number of lines as a terminal may get it, character by character."""
    return text.translate(_TEXT)


def one_line(text: object) -> str:
    """Return a name, a path or a message as a terminal may get it in one line."""
    return str(text).translate(_LINE)


def print_line(message: object, *, err: bool = False) -> None:
    """Print one line, on standard error if `err`."""
    print(one_line(message), file=sys.stderr if err else sys.stdout, flush=err)


class PrintableRecord(logging.LogRecord):
    """An entry of a log, in one line whoever wrote its values: to be set as logging's factory of records."""

    def getMessage(self) -> str:  # logging's own name
        return one_line(super().getMessage())
