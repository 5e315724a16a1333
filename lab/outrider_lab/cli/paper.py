"""The command `outrider-lab paper`. It ends with 1 when an answer was not the target's own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_bench.core.tables import show, show_line
from outrider_bench.harness.options import QuestionsOption, TargetOption
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from outrider_lab.paper.exhibit import Exhibit


paper_app = typer.Typer(invoke_without_command=True)
TOKENS_HELP = "Tokens of each run; default: the recipe's own."


@paper_app.callback()
def paper_command(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Directory of the report, its tables, and the measurements.")] = None,
    target: TargetOption = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            metavar="ROLE=DRAFTER",
            help="Drafter for a role in the tables, such as moa, moa_tli1, eagle2, independent, hydra; repeatable; "
            "default: those that ship for the target, each for the role of its name.",
        ),
    ] = None,
    questions: QuestionsOption = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table or figure, of those of --list; repeatable.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Ask next to nothing: whether it works, not what comes out.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the tables and figures, and measure nothing.")] = False,
) -> None:
    """Measure the papers' tables and figures again, and write a report that puts them beside the papers' own.

    What is there already is not measured again: after an interruption the same command goes on, and once all is there
    it only writes the report anew.
    """
    if context.invoked_subcommand is not None:
        return
    from outrider_lab.paper.exhibits import EXHIBITS

    chosen = [EXHIBITS[_known(name, list(EXHIBITS))] for name in table] if table else list(EXHIBITS.values())
    if listed:
        for exhibit in chosen:
            print(f"{exhibit.name:20} {exhibit.paper}, {exhibit.title}")
        return
    if out is None:
        raise UsageError("where to: need --out DIR, or --list")
    _report(out, target, drafter or (), questions, chosen, quick=quick)


@paper_app.command("train")
def train_command(
    recipe: Annotated[
        list[str] | None, typer.Option(help="Recipe to train; repeatable; default: all that do not ship.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each recipe, each with a seed of its own.")] = 1,
    tokens: Annotated[int | None, typer.Option(min=1, help=TOKENS_HELP)] = None,
) -> None:
    """Train the models that the papers' tables compare and that do not ship, once, into the user's cache folder.

    Those that are there are not trained again; after an interruption the same command goes on.
    """
    from outrider_lab.paper.trained import train_recipes

    for directory in train_recipes(recipe or (), seeds, tokens):
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
