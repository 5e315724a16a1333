"""`outrider-netsim clean`: what a link left behind whose owner was killed."""

from __future__ import annotations

import sys

import typer

from outrider_netsim.cli.terminal import ENGINE_EXIT, console

app = typer.Typer()


@app.command()
def clean() -> None:
    """Remove processes, interfaces and namespaces that earlier links left behind, and say which.

    Links in use are not touched. Ends with 1 when something could not be removed.
    """
    done = _removed()
    for line in done or ["nothing was left behind"]:
        console.print(line, soft_wrap=True, markup=False)
    if not all(line.startswith("removed") for line in done):
        raise typer.Exit(ENGINE_EXIT)


def _removed() -> list[str]:
    if sys.platform != "linux":  # a relay leaves nothing
        return []
    from outrider_netsim.namespaces.leftovers import remove_leftovers

    return remove_leftovers()
