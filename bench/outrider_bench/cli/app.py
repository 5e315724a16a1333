"""The command `outrider-bench`. Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed.

The modules beside this one, and those of the studies' options, import what a command needs only when it runs.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from outrider_bench.harness.options import PlotOption
from outrider_bench.harness.runner import StudyCommand, show_report
from outrider_bench.load.options import LoadOptions
from outrider_bench.network.options import NetworkOptions
from outrider_bench.spec.options import SpecOptions
from outrider_bench.studies import options
from outrider_bench.studies.drafters import options as of_drafters
from outrider_client.cli.options import ACCESS_OPTIONS
from outrider_proto.errors import LinkError, OutriderError, Refusal

STUDIES = (
    StudyCommand("trace", of_drafters.TraceOptions, "studies.drafters.trace:TraceStudy"),
    StudyCommand("exact", options.ExactOptions, "studies.pair.exact:ExactStudy"),
    StudyCommand("drafters", of_drafters.ComparisonOptions, "studies.drafters.comparison:ComparisonStudy"),
    StudyCommand("verify-cost", options.VerifyCostOptions, "studies.pair.verify_cost:VerifyCostStudy"),
    StudyCommand("load", LoadOptions, "load.study:LoadStudy", ACCESS_OPTIONS),
    StudyCommand("network", NetworkOptions, "network.study:NetworkStudy"),
    StudyCommand("spec", SpecOptions, "spec.study:SpecStudy"),
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"outrider {version('outrider')}")
        raise typer.Exit


@app.callback()
def _bench(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure server and client together.

    Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed.
    """


def show_command(
    report: Annotated[Path, typer.Argument(help="Report that a study has written with --json.")],
    plot: PlotOption = None,
) -> None:
    """Show the report of a study again: its tables, and its plot with --plot."""
    show_report(report, plot, {study.name: study for study in STUDIES})


for study in STUDIES:
    app.command(study.name)(study.callback)
app.command("show")(show_command)


def main() -> None:
    """Run the command; print every deliberate error as one line and exit with its code."""
    run_app(app, "outrider-bench")


def run_app(commands: typer.Typer, name: str) -> None:
    """Run `commands` as the command `name`, with errors as in `main`."""
    # As for Ctrl-C: the default action would leave servers behind that a command has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        commands()
    except OutriderError as error:
        typer.secho(f"{name}: {error}", fg="red", err=True)
        raise SystemExit(_exit_code(error)) from None


def _exit_code(error: OutriderError) -> int:
    match error:
        case Refusal():
            return 3
        case LinkError():
            return 4
        case _:
            return 2
