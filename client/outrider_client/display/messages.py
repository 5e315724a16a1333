"""Messages on standard error, and text made safe to print."""

from __future__ import annotations

import sys

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_SHOWN = dict.fromkeys(_CONTROLS, "\N{REPLACEMENT CHARACTER}") | {ord(kept): kept for kept in "\n\t"}


def printable(text: str) -> str:
    """Replace control characters, except newline and tab. Keeps the length."""
    # Text of a model or a server could otherwise send the terminal escape sequences, which move the cursor or worse.
    return text.translate(_SHOWN)


def print_message(message: str) -> None:
    """Print a line for the user on standard error, beside the answer."""
    print(f"outrider: {printable(message)}", file=sys.stderr)
