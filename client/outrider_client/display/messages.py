"""Text from elsewhere for a terminal, which obeys what it may hold."""

from __future__ import annotations

import sys

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_SHOWN = dict.fromkeys(_CONTROLS, "\N{REPLACEMENT CHARACTER}") | {ord(kept): kept for kept in "\n\t"}


def printable(text: str) -> str:
    """As long as before; control characters but newline and tab are replaced."""
    return text.translate(_SHOWN)


def print_message(message: str) -> None:
    """A line for the user, beside the answer."""
    print(f"outrider: {printable(message)}", file=sys.stderr)
