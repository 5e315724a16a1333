"""The command `outrider-bench`. Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed.

The modules beside this one, and those of the studies' options, import what a command needs only when it runs.
"""

from __future__ import annotations

import signal

import typer

from outrider_bench.harness.runner import StudyCommand, add_studies
from outrider_bench.load.options import LoadOptions
from outrider_bench.network.options import NetworkOptions, load_network
from outrider_bench.studies import options
from outrider_proto.errors import OutriderError
from outrider_proto.options.command import Commands, Version, exit_code
from outrider_proto.terminal.text import one_line

STUDIES = (
    StudyCommand("trace", options.TraceOptions, "studies.drafters.trace:TraceStudy"),
    StudyCommand("exact", options.ExactOptions, "studies.pair.exact:ExactStudy"),
    StudyCommand("drafters", options.ComparisonOptions, "studies.drafters.comparison:ComparisonStudy"),
    StudyCommand("verify-cost", options.VerifyCostOptions, "studies.pair.verify_cost:VerifyCostStudy"),
    StudyCommand("humaneval", options.HumanEvalOptions, "studies.humaneval.study:HumanEvalStudy"),
    StudyCommand("load", LoadOptions, "load.study:LoadStudy"),
    StudyCommand("network", NetworkOptions, "network.study:NetworkStudy", load_network),
)

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _bench(version: Version = False) -> None:
    """Measure server and client together.

    Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed.
    """


add_studies(app, STUDIES)


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
        typer.secho(one_line(f"{name}: {error}"), fg="red", err=True)
        raise SystemExit(exit_code(error)) from None
