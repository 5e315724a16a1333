"""The command `outrider-netsim`, assembled from one module per group of commands."""

from __future__ import annotations

import sys

import typer

from outrider_netsim.cli import control as cli_control
from outrider_netsim.cli import fit as cli_fit
from outrider_netsim.cli import probe as cli_probe
from outrider_netsim.cli import profiles as cli_profiles
from outrider_netsim.cli import proxy as cli_proxy
from outrider_netsim.cli import run as cli_run
from outrider_netsim.cli import trace as cli_trace
from outrider_netsim.cli.terminal import console
from outrider_proto.options.command import Program, Version

app = typer.Typer(cls=Program, no_args_is_help=True, add_completion=False)
for group in (cli_profiles, cli_run, cli_proxy, cli_trace, cli_fit, cli_probe, cli_control):
    app.add_typer(group.app)


@app.callback()
def _netsim(version: Version = False) -> None:
    """Emulate links between a drafter and its target."""


@app.command()
def clean() -> None:
    """Remove and list the processes and sockets that earlier links left behind.

    Links in use are not touched. The exit status is 1 when something could not be removed.
    """
    removals = _remove_leftovers()
    for line in removals or ["nothing was left behind"]:
        console.print(line, soft_wrap=True, markup=False)
    if not all(line.startswith("removed") for line in removals):
        raise typer.Exit(1)


def _remove_leftovers() -> list[str]:
    if sys.platform != "linux":  # a relay leaves nothing
        return []
    from outrider_netsim.namespaces.processes import remove_leftovers

    return [*remove_leftovers(), *cli_control.remove_stale()]


def main() -> None:
    """Run the console command."""
    app(prog_name="outrider-netsim")


if __name__ == "__main__":
    main()
