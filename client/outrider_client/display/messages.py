"""Messages on standard error, and errors as a user reads them: in plain words, or as one JSON object with --json."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from outrider_proto.errors import LinkError, OutriderError, Refusal, UsageError

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_SHOWN = dict.fromkeys(_CONTROLS, "\N{REPLACEMENT CHARACTER}") | {ord(kept): kept for kept in "\n\t"}
_UNREACHABLE = re.compile(r"cannot reach \S+: (?P<reason>.*)", re.DOTALL)
_PULL_PLACEHOLDER = "outrider pull HOST:PORT"  # as a server says it, which does not know its own name
# Parts of gRPC's texts, in lower case, and what they mean.
_MEANINGS = (
    ("connection refused", "no server listens there; is outrider-server running?"),
    ("domain name not found", "there is no host of that name"),
    ("errors resolving", "there is no host of that name"),
    ("network is unreachable", "this device has no network to it"),
    ("no route to host", "this device has no network to it"),
    ("timed out", "it does not answer; is the address right, and does a firewall let it through?"),
    ("deadline exceeded", "it does not answer; is the address right, and does a firewall let it through?"),
)


def printable(text: str) -> str:
    """Replace control characters, except newline and tab. Keeps the length."""
    # Text of a model or a server could otherwise send the terminal escape sequences, which move the cursor or worse.
    return text.translate(_SHOWN)


def format_bytes(count: int) -> str:
    """A size with its unit, such as 1.2 kB."""
    return f"{count} B" if count < 1000 else f"{count / 1000:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def print_message(message: str) -> None:
    """Print a line for the user on standard error, beside the answer."""
    print(f"outrider: {printable(message)}", file=sys.stderr)


def explained(error: OutriderError, server: str, *, other_server: str = "--server HOST") -> OutriderError:
    """Return the error with its cause in plain words, and commands in it that name `server`.

    `other_server` is what names another one on the command line.
    """
    match error:
        case LinkError():
            return LinkError(_plain_words(str(error), server, other_server))
        case Refusal():
            message = error.message.replace(_PULL_PLACEHOLDER, f"outrider pull {server}")
            return Refusal(error.reason, message, error.retry_after_s)
        case _:
            return error


@contextmanager
def explaining(server: str, *, other_server: str = "--server HOST") -> Iterator[None]:
    """Explain the errors of a block that talks to `server`."""
    try:
        yield
    except OutriderError as error:
        raise explained(error, server, other_server=other_server) from error


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


def _plain_words(message: str, server: str, other_server: str) -> str:
    unreachable = _UNREACHABLE.fullmatch(message)
    if unreachable is None:
        return message
    reason = unreachable["reason"].lower()
    meaning = next((meaning for sign, meaning in _MEANINGS if sign in reason), None)
    if meaning is None:
        return message
    # Not the address in the message: behind an emulated link that is one of our own.
    return f"cannot reach {server}: {meaning} ({other_server} names another server)"
