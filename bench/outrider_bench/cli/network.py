"""The command `outrider-bench network`. It ends with 1 when answers differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_bench.core.progress import progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import show, show_line
from outrider_bench.harness.options import (
    BreadthOption,
    BudgetOption,
    FamiliesOption,
    JsonOption,
    LevelsOption,
    PlotOption,
    QuestionsOption,
    TargetOption,
    codec_of,
    drafters_for,
    target_of,
)
from outrider_netsim import EngineChoice

if TYPE_CHECKING:
    from outrider_bench.network.plan import NetworkPlan
    from outrider_bench.network.records import RecordFiles
    from outrider_bench.network.report import Scenario
    from outrider_proto.frames import Codec

MODE_OPTIONS = "wait_for_features, opening, in_flight, outcomes, tree, breadth, levels, budget"
TABLE_3 = {"profiles": ("none", "paper-5g", "paper-4g")}
PAPERS_DRAFTERS = ("moa_tli1", "moa", "eagle2", "independent")


def network_command(
    experiment: Annotated[
        Path | None,
        typer.Option(help="TOML file of links, modes, drafters and seeds to measure; options given here override it."),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile", help="Link profile from `outrider-netsim list`, or none; repeatable; default: paper-5g."
        ),
    ] = None,
    pace: Annotated[
        str | None,
        typer.Option(help="Emulate the compute times of this hardware on both sides: a name (paper) or a TOML file."),
    ] = None,
    target: TargetOption = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Name of one that ships, DIR[,option=value...] or lookup; repeatable; default: the best that ships "
            "for the target, or else lookup.",
        ),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            metavar="MODE[,OPTION=VALUE...]",
            help=f"Mode to measure beside the controls; repeatable; default: the client's. Options: {MODE_OPTIONS}.",
        ),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Questions, the families in turn; default: 24 held-out ones, 4 of each family, or all of --questions. "
            "A run of three modes over 24 takes about a minute, two with --pace paper.",
        ),
    ] = None,
    questions: QuestionsOption = None,
    families: FamiliesOption = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=2, help="New tokens per answer; default: 128.")] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(min=0, help="Lengthen prompts with earlier questions and answers to at least this many tokens."),
    ] = None,
    cores_apart: Annotated[
        bool | None,
        typer.Option(
            "--cores-apart/--shared-cores",
            help="Pin the server to one core, client and link to another, each with one thread, as if on two machines; "
            "default: they share all cores.",
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Repetitions, each over a link with another seed; results are medians over them; default: 1."
        ),
    ] = None,
    engine: Annotated[
        EngineChoice | None,
        typer.Option(help="What emulates the link; auto, the default, takes the best that this machine allows."),
    ] = None,
    breadth: BreadthOption = None,
    levels: LevelsOption = None,
    budget: BudgetOption = None,
    wait_for_features: Annotated[
        bool | None, typer.Option(help="Draft only with the newest features; default: as the drafter needs it.")
    ] = None,
    in_flight: Annotated[int | None, typer.Option(help="Drafts in flight at once in mode pipelined.")] = None,
    outcomes: Annotated[
        int | None, typer.Option(help="Outcomes to draft ahead for; default: as many as pay off.")
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option("--codec", help="Feature codec; default: int8. Repeatable with --table7, default there: all."),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            "--seed",
            help="Random seed of the link in the first run (the next one has the next) and of the order of the modes; "
            "repeatable, a case each; default: 1.",
        ),
    ] = None,
    table3: Annotated[
        bool,
        typer.Option(
            "--table3",
            help="The paper's Table 3: its drafters (of another target all that ship, or else lookup) on one device, "
            "over 5G and over 4G.",
        ),
    ] = False,
    table7: Annotated[
        bool, typer.Option("--table7", help="Only the paper's Table 7: bytes of messages, by drafter and codec.")
    ] = False,
    json: JsonOption = None,
    plot: PlotOption = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            "--records",
            help="Write every answer to this file as it comes: .jsonl, which --resume reads (default: beside the "
            "report), and .csv, one row each; repeatable.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Measure only what the .jsonl records lack; all options must be the same.")
    ] = False,
) -> None:
    """Measure drafting across an emulated link, with a real server and client, beside the controls.

    The controls are stream and server-draft.
    """
    from outrider_bench.network.experiment import planned
    from outrider_proto.frames import CODECS

    codecs = [codec_of(name) for name in codec or CODECS]
    tree = {"breadth": breadth, "levels": levels, "budget": budget}
    given = {
        "profiles": profile,
        "drafters": drafter,
        "modes": mode,
        "seeds": seed,
        "target": target,
        "pace": pace,
        "codec": codecs[0] if codec else None,
        "engine": engine,
        "questions": questions,
        "families": None if families is None else families.split(","),
        "prompts": prompts,
        "max_new_tokens": max_new_tokens,
        "prompt_tokens": prompt_tokens,
        "cores_apart": cores_apart,
        "runs": runs,
        "tree": {name: value for name, value in tree.items() if value is not None},
        "wait_for_features": wait_for_features,
        "in_flight": in_flight,
        "outcomes": outcomes,
    }
    papers: dict[str, Sequence[str]] = dict(TABLE_3) if table3 else {}
    if table3 or table7:
        papers["drafters"] = PAPERS_DRAFTERS if target is None else drafters_for(target_of(target))
    plan = planned(experiment, {name: value for name, value in given.items() if value is not None}, papers)
    if table7:
        _measure_messages(plan, codecs if codec or experiment is None else [plan.codec], json)
    else:
        _measure(plan, _files(plan, records or [], json, resume), table3, json, plot)


def _files(plan: NetworkPlan, named: Sequence[Path], json: Path | None, resume: bool) -> RecordFiles:
    from outrider_bench.network.records import RecordFiles

    return RecordFiles.of(named, json, plan.settings, resume=resume)


def _measure(plan: NetworkPlan, files: RecordFiles, table3: bool, json: Path | None, plot: Path | None) -> None:
    from outrider_bench.network.plan import measure
    from outrider_bench.network.report import network_report

    with progress_line() as step, files.open() as records:
        if len(records):
            show_line(f"{files.lines}: {len(records)} answers are there already")
        try:
            scenarios = asyncio.run(measure(plan, records, step))
        except BaseException:
            if files.lines is not None:
                show_line(f"{files.lines}: {len(records)} answers are kept: the same command with --resume goes on")
            raise
    _show(scenarios, table3)
    write_report(json, network_report(scenarios))
    if plot is not None:
        from outrider_bench.network.plots import plot_network

        plot_network(scenarios, plot)
    if any(scenario.mismatches for scenario in scenarios):
        raise typer.Exit(1)


def _show(scenarios: Sequence[Scenario], table3: bool) -> None:
    from outrider_bench.network.tables import (
        cost_table,
        first_token_table,
        legend,
        link_table,
        pauses_table,
        speed_table,
        split_table,
        text_table,
    )

    for scenario in scenarios:
        for line in legend(scenario):
            show_line(line)
        show(speed_table(scenario), *([text_table(scenario)] if scenario.text_groups else []))
        for table in (first_token_table, cost_table, split_table, pauses_table):
            show(table(scenario))
        for name, why in scenario.missing.items():
            show_line(f"no control {name}: {why}")
        mismatches = scenario.mismatches
        differing = f"{mismatches} answers differ from the stream's" if mismatches else "all answers the same"
        show_line(f"{differing}; {scenario.extent}")
    if table3 or len({scenario.setting.profile for scenario in scenarios}) > 1:
        show(link_table(scenarios, "(the paper's Table 3)" if table3 else ""))


def _measure_messages(plan: NetworkPlan, codecs: Sequence[Codec], json: Path | None) -> None:
    from outrider_bench.network.messages import measure_messages
    from outrider_bench.network.tables import messages_table

    with progress_line() as step:
        sizes = asyncio.run(measure_messages(plan, codecs, step))
    show(messages_table(sizes))
    write_report(json, {"pace": plan.pace, "messages": [asdict(one) for one in sizes]})
