"""Messages on standard error, and errors as a user reads them: in plain words, or as one JSON object with --json."""

from __future__ import annotations

import json
import sys
from functools import partial

from outrider_client.connection import diagnosis
from outrider_proto.errors import LinkError, OutriderError, Refusal, UsageError

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_SHOWN = dict.fromkeys(_CONTROLS, "\N{REPLACEMENT CHARACTER}") | {ord(kept): kept for kept in "\n\t"}
_OTHER_SERVER = " (--server HOST names another server)"
# As diagnosis.py has them, for commands.
explained = partial(diagnosis.explained, hint=_OTHER_SERVER)
explaining = partial(diagnosis.explaining, hint=_OTHER_SERVER)


def printable(text: str) -> str:
    """Replace control characters, except newline and tab. Keeps the length."""
    # Text of a model or a server could otherwise send the terminal escape sequences, which move the cursor or worse.
    return text.translate(_SHOWN)


def print_message(message: str) -> None:
    """Print a line for the user on standard error, beside the answer."""
    print(f"outrider: {printable(message)}", file=sys.stderr)


def report_error(error: OutriderError, *, as_json: bool, hint: str = "") -> None:
    """Print an error: a line on standard error, or a JSON object on standard output, where the events are."""
    message = f"{error}{hint}"
    if as_json:
        print(json.dumps({"event": "error", "code": error_code(error), "message": message}), flush=True)
    else:
        print_message(message)


def error_code(error: OutriderError) -> str:
    """The name of an error in JSON: usage, link, or the reason of a refusal, such as target_mismatch."""
    match error:
        case UsageError():
            return "usage"
        case Refusal():
            return error.reason.name.lower()
        case LinkError():
            return "link"
        case _:
            return "error"
