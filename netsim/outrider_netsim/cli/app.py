"""`outrider-netsim`: the command, put together from one file a group."""

from __future__ import annotations

import typer

from outrider_netsim.cli import clean as cli_clean
from outrider_netsim.cli import probe as cli_probe
from outrider_netsim.cli import profiles as cli_profiles
from outrider_netsim.cli import proxy as cli_proxy
from outrider_netsim.cli import run as cli_run
from outrider_netsim.cli import trace as cli_trace

app = typer.Typer(help="Emulated links between a drafter and its target.", no_args_is_help=True, add_completion=False)
for group in (cli_profiles, cli_run, cli_proxy, cli_trace, cli_probe, cli_clean):
    app.add_typer(group.app)


def main() -> None:
    """Entry point of the console command."""
    app()


if __name__ == "__main__":
    main()
