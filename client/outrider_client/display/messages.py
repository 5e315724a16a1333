"""Messages on standard error, and errors as a user reads them: in plain words, or as one JSON object with --json."""

from __future__ import annotations

import json
from functools import partial

from outrider_client.connection import diagnosis
from outrider_proto.errors import LinkError, OutriderError, Refusal, UsageError
from outrider_proto.terminal.text import print_line

_OTHER_SERVER = " (--server HOST names another server)"
# As diagnosis.py has them, for commands.
explained = partial(diagnosis.explained, hint=_OTHER_SERVER)
explaining = partial(diagnosis.explaining, hint=_OTHER_SERVER)


def print_message(message: str) -> None:
    """Print a line for the user on standard error, beside the answer."""
    print_line(f"outrider: {message}", err=True)


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
