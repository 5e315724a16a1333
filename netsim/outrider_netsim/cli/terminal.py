"""Consoles and exit statuses of all commands.

Results go to standard output, everything else to standard error. Exit status 2 means invalid arguments, 1 that this
machine cannot do it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from outrider_netsim.core.errors import EngineError, ProfileError

USAGE_EXIT = 2
ENGINE_EXIT = 1

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn ProfileError and EngineError into a message and an exit status."""
    try:
        yield
    except ProfileError as error:
        fail(str(error))
    except EngineError as error:
        fail(str(error), ENGINE_EXIT)


def fail(message: str, status: int = USAGE_EXIT) -> NoReturn:
    """Print an error and end the command. Raises typer.Exit."""
    errors.print("[bold red]error:[/]", end=" ")
    errors.print(message, soft_wrap=True, markup=False)
    raise typer.Exit(status)


def write_whole(text: str, file: Path) -> None:
    """Write a file whole or not at all. Raises ProfileError if it cannot."""
    partial = file.with_name(file.name + ".partial")
    try:
        partial.write_text(text)
        os.replace(partial, file)
    except OSError as error:
        raise ProfileError(f"{file}: cannot be written: {error.strerror or error}") from None
