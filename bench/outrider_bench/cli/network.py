"""The command `outrider-bench network`. It ends with 1 when answers differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_bench.cli.options import (
    ALL_FAMILIES,
    BreadthOption,
    BudgetOption,
    FamiliesOption,
    JsonOption,
    LevelsOption,
    NewTokensOption,
    PlotOption,
    TargetOption,
    codec_of,
    families_of,
    target_of,
)
from outrider_bench.core.progress import progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import show, show_line
from outrider_models.core.embedded import DRAFTERS
from outrider_netsim import EngineChoice

if TYPE_CHECKING:
    from outrider_bench.network.plan import NetworkPlan
    from outrider_bench.network.report import Scenario
    from outrider_proto.frames import Codec

PROFILE = "paper-5g"
MODE_OPTIONS = "wait_for_features, opening, in_flight, outcomes, breadth, levels, budget"
TABLE_3_PROFILES = ("none", "paper-5g", "paper-4g")
PAPERS_DRAFTERS = ("moa_tli1", "moa", "eagle2", "independent")


def network_command(
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile", help=f"Link profile from `outrider-netsim list`, or none; repeatable; default: {PROFILE}."
        ),
    ] = None,
    pace: Annotated[
        str | None,
        typer.Option(help="Emulate the compute times of this hardware on both sides: a name (paper) or a TOML file."),
    ] = None,
    target: TargetOption = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", help=f"Embedded name or DIR[,option=value...]; repeatable; default: {DRAFTERS[0]}."),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            metavar="MODE[,OPTION=VALUE...]",
            help=f"Mode to measure beside the controls; repeatable; default: the client's. Options: {MODE_OPTIONS}.",
        ),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts, the families in turn.")] = 12,
    families: FamiliesOption = ALL_FAMILIES,
    max_new_tokens: NewTokensOption = 128,
    prompt_tokens: Annotated[
        int,
        typer.Option(min=0, help="Lengthen prompts with earlier questions and answers to at least this many tokens."),
    ] = 0,
    runs: Annotated[int, typer.Option(min=1, help="Repetitions of everything; results are medians over them.")] = 1,
    engine: Annotated[
        EngineChoice, typer.Option(help="What emulates the link; auto takes the best that this machine allows.")
    ] = "auto",
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
    seed: Annotated[int, typer.Option(help="Random seed of the link.")] = 1,
    table3: Annotated[
        bool, typer.Option("--table3", help="The paper's Table 3: its drafters on one device, over 5G and over 4G.")
    ] = False,
    table7: Annotated[
        bool, typer.Option("--table7", help="Only the paper's Table 7: bytes of messages, by drafter and codec.")
    ] = False,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Measure drafting across an emulated link, with a real server and client, beside the controls.

    The controls are stream and server-draft.
    """
    from outrider_bench.network.plan import NetworkPlan
    from outrider_bench.network.variants import CONTROLS
    from outrider_client.core.config import ClientConfig
    from outrider_proto.frames import CODECS

    codecs = [codec_of(name) for name in codec or CODECS]
    plan = NetworkPlan(
        target=target_of(target),
        profiles=profile or (TABLE_3_PROFILES if table3 else (PROFILE,)),
        drafters=drafter or (PAPERS_DRAFTERS if table3 or table7 else DRAFTERS[:1]),
        variants=[variant for variant in mode or (ClientConfig().mode,) if variant not in CONTROLS],
        common={
            "breadth": breadth,
            "levels": levels,
            "budget": budget,
            "wait_for_features": wait_for_features,
            "in_flight": in_flight,
            "outcomes": outcomes,
        },
        pace=pace,
        codec=codecs[0],
        engine=engine,
        families=families_of(families),
        prompts=prompts,
        max_new_tokens=max_new_tokens,
        prompt_tokens=prompt_tokens,
        runs=runs,
        seed=seed,
    )
    if table7:
        _measure_messages(plan, codecs, json)
    else:
        _measure(plan, table3, json, plot)


def _measure(plan: NetworkPlan, table3: bool, json: Path | None, plot: Path | None) -> None:
    from outrider_bench.network.plan import measure
    from outrider_bench.network.report import network_report

    with progress_line() as step:
        scenarios = asyncio.run(measure(plan, step))
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
    )

    for scenario in scenarios:
        for line in legend(scenario):
            show_line(line)
        for table in (speed_table, first_token_table, cost_table, split_table, pauses_table):
            show(table(scenario))
        for name, why in scenario.missing.items():
            show_line(f"no control {name}: {why}")
        mismatches = scenario.mismatches
        differing = f"{mismatches} answers differ from the stream's" if mismatches else "all answers the same"
        show_line(f"{differing}; {len(scenario.runs)} runs of {scenario.setting.prompts} prompts")
    if table3:
        show(link_table(scenarios))


def _measure_messages(plan: NetworkPlan, codecs: Sequence[Codec], json: Path | None) -> None:
    from outrider_bench.network.messages import measure_messages
    from outrider_bench.network.tables import messages_table

    with progress_line() as step:
        sizes = asyncio.run(measure_messages(plan, codecs, step))
    show(messages_table(sizes))
    write_report(json, {"pace": plan.pace, "messages": [asdict(one) for one in sizes]})
