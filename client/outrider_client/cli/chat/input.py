"""The lines that the user types: with editing, completion and a history on a terminal, else read from a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from outrider_client.cli.chat.commands import COMMANDS
from outrider_client.display.messages import print_message
from outrider_client.privacy.fences import MARK, OPEN, parse_fences
from outrider_proto.errors import UsageError

_BLANK = "<<private: >>"
_QUOTES = '"""'  # around a message of several lines


def read_lines(history: Path | None) -> Iterator[str]:
    """Yield lines to the input's end, or Ctrl-C twice. The file `history` keeps them, without private text."""
    read = _from_terminal(history) if is_interactive() else _from_pipe()
    return (line.strip() for line in read if line.strip())


def is_interactive() -> bool:
    """Return whether somebody types and reads."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def without_private(line: str) -> str:
    """A line as the history may keep it."""
    try:
        parse_fences(line)
    except UsageError:  # a fence does not close, say, so anything after it may be private
        return line.partition(OPEN)[0] + _BLANK
    return MARK.sub(lambda mark: mark.group() if mark["label"] is None else _BLANK, line)


def _from_pipe() -> Iterator[str]:
    while sys.stdin is not None:  # as job schedulers close it
        try:
            yield input()
        except (EOFError, KeyboardInterrupt):
            return
        except UnicodeDecodeError:
            raise UsageError(
                "standard input: not text in this system's encoding"
            ) from None  # the error quotes the text


def _from_terminal(history: Path | None) -> Iterator[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    class SafeHistory(FileHistory):
        # prompt_toolkit keeps the line itself for this chat's arrow keys, and calls this for what goes into the file.
        def store_string(self, string: str) -> None:
            with _reporting(self.filename):
                super().store_string(without_private(string))

    recent: History = InMemoryHistory()
    if history is not None:
        with _reporting(history):
            history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            history.touch(mode=0o600)
            history.open("ab").close()
            recent = SafeHistory(str(history))
    completer = WordCompleter([f"/{name}" for name in COMMANDS], sentence=True)
    session: PromptSession[str] = PromptSession(
        "> ",
        history=recent,
        completer=completer,
        complete_while_typing=False,
        # All lines of a quoted message are one entry: of the history, too, which looks for private text in each.
        multiline=Condition(lambda: _is_in_quotes(session.default_buffer.text)),
        prompt_continuation="... ",
    )
    is_warned = False
    while True:
        try:
            line = session.prompt()
        except EOFError:
            return
        except KeyboardInterrupt:
            was_empty = not session.default_buffer.text
            if was_empty and is_warned:
                return
            if was_empty:
                print_message("Ctrl-C once more leaves, as Ctrl-D does")
            is_warned = was_empty
        else:
            is_warned = False
            yield _without_quotes(line)


@contextlib.contextmanager
def _reporting(history: object) -> Iterator[None]:
    """Tell that a history cannot be written, and go on: the chat does without it."""
    try:
        yield
    except OSError as error:
        print_message(f"{history}: what is typed is not kept ({error.strerror})")


def _is_in_quotes(text: str) -> bool:
    return text.lstrip().startswith(_QUOTES) and text.count(_QUOTES) == 1


def _without_quotes(line: str) -> str:
    quoted = line.strip()
    if not quoted.startswith(_QUOTES) or not quoted.endswith(_QUOTES):
        return line
    message = quoted.removeprefix(_QUOTES).removesuffix(_QUOTES).strip()
    return f"/{message}" if message.startswith("/") else message  # no command stands in quotes
