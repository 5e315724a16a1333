"""The command `outrider-lab paper`. It ends with 1 when an answer was not the target's own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_bench.core.tables import show, show_line
from outrider_bench.harness.options import QuestionsOption, TargetOption
from outrider_proto.errors import UsageError
from outrider_proto.flag import Flag
from outrider_proto.options.command import with_options

if TYPE_CHECKING:
    from outrider_lab.paper.exhibit import Exhibit


paper_app = typer.Typer(invoke_without_command=True)


@dataclass(frozen=True, kw_only=True)
class PaperOptions:
    """What to report on, and where."""

    out: Annotated[Path | None, Flag("Directory of the report, its tables, and the measurements.")] = None
    target: TargetOption = None
    drafter: Annotated[
        tuple[str, ...],
        Flag(
            "Drafter for a role in the tables, such as moa, moa_tli1, eagle2, independent, hydra; repeatable; default: "
            "those that ship for the target, each for the role of its name.",
            metavar="ROLE=DRAFTER",
        ),
    ] = ()
    questions: QuestionsOption = None
    table: Annotated[tuple[str, ...], Flag("Only this table or figure, of those of --list; repeatable.")] = ()
    quick: Annotated[bool, Flag("Ask next to nothing: whether it works, not what comes out.")] = False
    listed: Annotated[bool, Flag("List the tables and figures, and measure nothing.", name="list")] = False


@paper_app.callback()
@with_options(PaperOptions)
def paper_command(options: PaperOptions, context: typer.Context) -> None:
    """Measure the papers' tables and figures again, and write a report that puts them beside the papers' own.

    What is there already is not measured again: after an interruption the same command goes on, and once all is there
    it only writes the report anew.
    """
    if context.invoked_subcommand is not None:
        return
    from outrider_lab.paper.exhibits import EXHIBITS

    chosen = (
        [EXHIBITS[_known(name, list(EXHIBITS))] for name in options.table] if options.table else list(EXHIBITS.values())
    )
    if options.listed:
        for exhibit in chosen:
            print(f"{exhibit.name:20} {exhibit.paper}, {exhibit.title}")
        return
    if options.out is None:
        raise UsageError("where to: need --out DIR, or --list")
    questions = options.questions
    # As the reports in docs name them, which are written again in any checkout.
    if questions is not None and questions.is_relative_to(Path.cwd()):
        questions = questions.relative_to(Path.cwd())
    _report(options.out, options.target, options.drafter, questions, chosen, quick=options.quick)


@dataclass(frozen=True, kw_only=True)
class PaperTrainOptions:
    """What to train, and how often."""

    recipe: Annotated[tuple[str, ...], Flag("Recipe to train; repeatable; default: all that do not ship.")] = ()
    seeds: Annotated[int, Flag("Runs of each recipe, each with a seed of its own.", expert=True)] = 1
    tokens: Annotated[int | None, Flag("Tokens of each run; default: the recipe's own.", expert=True)] = None


@paper_app.command("train")
@with_options(PaperTrainOptions)
def train_command(options: PaperTrainOptions) -> None:
    """Train the models that the papers' tables compare and that do not ship, once, into the user's cache folder.

    Those that are there are not trained again; after an interruption the same command goes on.
    """
    from outrider_lab.paper.trained import train_recipes

    for directory in train_recipes(options.recipe, options.seeds, options.tokens):
        show_line(str(directory))


def _report(
    out: Path,
    target: str | None,
    drafters: Sequence[str],
    questions: Path | None,
    chosen: Sequence[Exhibit],
    *,
    quick: bool,
) -> None:
    from outrider_lab.paper.claims import claims_table
    from outrider_lab.paper.measurement import measured_arguments, take_all
    from outrider_lab.paper.page import REPORT, write_page
    from outrider_lab.paper.setup import paper_setup

    kept = out / "json"
    setup = paper_setup(target, drafters, questions, quick=quick, measured=measured_arguments(kept))
    needs = {exhibit.name: exhibit.needs(setup) for exhibit in chosen}
    possible = [one for one in chosen if needs[one.name] and all(its.can_be_had(kept) for its in needs[one.name])]
    for exhibit in chosen:
        if exhibit not in possible:
            show_line(f"{exhibit.name}: left out: it needs another target, or drafters that are not there")
    needed = {one.name: one for exhibit in possible for one in needs[exhibit.name]}
    reports = take_all([replace(one, timed=one.timed and not quick) for one in needed.values()], kept, setup.at_once)
    claims = write_page(setup, possible, reports, out)
    if claims:
        show(claims_table(claims))
    show_line(f"{out / REPORT}")
    if wrong := [name for name, report in reports.items() if report["paper_failed"]]:
        show_line(f"failed checks, see their reports in {kept}: {', '.join(wrong)}", style="red")
        raise typer.Exit(1)


def _known(name: str, names: Sequence[str]) -> str:
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1)
    raise UsageError(f"table={name!r}: " + (f"did you mean {near[0]}?" if near else f"choose from {', '.join(names)}"))
