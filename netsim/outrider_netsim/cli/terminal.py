"""Consoles and exit statuses of all commands.

Results go to standard output, everything else to standard error. Exit status 2 means invalid arguments, 1 that this
machine cannot do it.
"""

from __future__ import annotations

from typing import Any, NoReturn

import typer
from rich.console import Console

from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_proto.options.command import Program

USAGE_EXIT = 2
ENGINE_EXIT = 1

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


class LinkProgram(Program):
    """The command: an error of the user's or of this machine is one line and an exit status."""

    def invoke(self, ctx: Any) -> Any:  # Any: click's Context; what a command returns
        try:
            return super().invoke(ctx)
        except ProfileError as error:
            fail(str(error))
        except EngineError as error:
            fail(str(error), ENGINE_EXIT)


def fail(message: str, status: int = USAGE_EXIT) -> NoReturn:
    """Print an error and end the command. Raises typer.Exit."""
    typer.echo(f"outrider-netsim: {message}", err=True)
    raise typer.Exit(status)
