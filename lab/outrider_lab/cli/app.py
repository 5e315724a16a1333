"""The command `outrider-lab`. Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed."""

from __future__ import annotations

from functools import partial

import typer

from outrider_bench.cli.app import run_app
from outrider_bench.harness.runner import StudyCommand, add_studies
from outrider_lab.cli.models import answer_command, corpus_command, prompts_command, train_command
from outrider_lab.cli.paper import paper_app
from outrider_lab.cli.record import record_command
from outrider_lab.soak.options import SoakOptions
from outrider_lab.spec.options import SpecOptions
from outrider_lab.studies import options
from outrider_lab.virtual.options import SweepOptions, VirtualOptions
from outrider_proto.options.command import Commands

_Study = partial(StudyCommand, package="outrider_lab")
STUDIES = (
    _Study("eval", options.EvalOptions, "studies.evaluation:EvaluationStudy"),
    _Study("spec", SpecOptions, "spec.study:SpecStudy"),
    _Study("depth-sweep", options.DepthSweepOptions, "studies.depth_sweep:DepthSweepStudy"),
    _Study("routing", options.RoutingOptions, "studies.routing:RoutingStudy"),
    _Study("typical", options.TypicalOptions, "studies.typical:TypicalStudy"),
    _Study("edge-weights", options.EdgeWeightsOptions, "studies.edge_weights:EdgeWeightsStudy"),
    _Study("staleness", options.StalenessOptions, "studies.staleness:StalenessStudy"),
    _Study("peers", options.PeersOptions, "peers.study:PeersStudy"),
    _Study("soak", SoakOptions, "soak.study:SoakStudy"),
    _Study("virtual", VirtualOptions, "virtual.study:VirtualStudy"),
    _Study("sweep", SweepOptions, "virtual.study:SweepStudy"),
)
app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _lab() -> None:
    """Reproduce the papers' tables, and the studies behind them.

    Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed.
    """


add_studies(app, STUDIES)
app.command("record")(record_command)
app.command("train")(train_command)
app.command("corpus")(corpus_command)
app.command("prompts")(prompts_command)
app.command("answer")(answer_command)
app.add_typer(paper_app, name="paper")


def main() -> None:
    """Run the command; print every deliberate error as one line and exit with its code."""
    run_app(app, "outrider-lab")


if __name__ == "__main__":
    main()
