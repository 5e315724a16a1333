"""The command `outrider-lab`. Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed."""

from __future__ import annotations

import typer

from outrider_bench.cli.app import run_app
from outrider_lab.cli.paper import paper_app

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _lab() -> None:
    """Reproduce the papers' tables, and the studies behind them.

    Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed.
    """


app.add_typer(paper_app, name="paper")


def main() -> None:
    """Run the command; print every deliberate error as one line and exit with its code."""
    run_app(app, "outrider-lab")
