"""`outrider-bench network`: options in; tables, report and picture out. Ends with 1 when answers differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from outrider_bench.network.messages import MessageSizes, message_sizes
from outrider_bench.network.passage import NO_LINK
from outrider_bench.network.plan import Plan, measure
from outrider_bench.network.report import Case, network_report
from outrider_bench.network.tables import (
    beginning_table,
    cost_table,
    legend,
    link_table,
    messages_table,
    pauses_table,
    speed_table,
    split_table,
)
from outrider_bench.network.ways import CONTROLS
from outrider_bench.progress import Counter, Step, progress_line
from outrider_bench.report import write_report
from outrider_client.config import ClientConfig
from outrider_client.local_models import LocalModels
from outrider_drafters.frozen import resolve_dir
from outrider_drafters.pace import Pace
from outrider_models.corpus import FAMILIES, Family
from outrider_models.embedded import DRAFTERS, target_dir
from outrider_netsim import EngineChoice
from outrider_proto.errors import UsageError
from outrider_proto.frames import CODECS, Codec
from outrider_server.target import Target

PROFILE = "paper-5g"
TABLE_3_PROFILES = (NO_LINK, "paper-5g", "paper-4g")
PAPERS_DRAFTERS = ("moa_tli1", "moa", "eagle2", "independent")
console = Console(stderr=True)


def network_command(
    profile: Annotated[
        list[str] | None,
        typer.Option(help=f"A link from `outrider-netsim list`, or none; repeatable; {PROFILE}."),
    ] = None,
    pace: Annotated[
        str | None, typer.Option(help="Hardware whose times both sides take: a name (paper) or a TOML file.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Directory or hub name of the target; the embedded one.")] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(help=f"Embedded name or DIR[,option=value...]; repeatable; {DRAFTERS[0]}.")
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODE[,OPTION=VALUE...]",
            help="Beside the controls; repeatable. Options: wait_for_features, opening, in_flight, outcomes, "
            f"breadth, levels, budget. {ClientConfig().mode}.",
        ),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts, the families in turn.")] = 12,
    families: Annotated[str, typer.Option(help="Of prompts, separated by commas.")] = ",".join(FAMILIES),
    max_new_tokens: Annotated[int, typer.Option(min=2, help="New tokens an answer.")] = 128,
    prompt_tokens: Annotated[
        int, typer.Option(min=0, help="Of each prompt at least: what was asked and answered before is put before it.")
    ] = 0,
    runs: Annotated[int, typer.Option(min=1, help="Times that all is repeated; figures are medians.")] = 1,
    engine: Annotated[
        EngineChoice, typer.Option(help="What makes the link; auto takes the best that this machine allows.")
    ] = "auto",
    breadth: Annotated[
        int | None, typer.Option(help="Of the trees, on both sides; default: the drafter's own.")
    ] = None,
    levels: Annotated[int | None, typer.Option(help="As above.")] = None,
    budget: Annotated[int | None, typer.Option(help="As above.")] = None,
    wait_for_features: Annotated[
        bool | None, typer.Option(help="Draft on only with the newest features; default: as the drafter needs it.")
    ] = None,
    in_flight: Annotated[int | None, typer.Option(help="Drafts under way at once (pipelined).")] = None,
    outcomes: Annotated[int | None, typer.Option(help="Outcomes to draft ahead for; default: what pays.")] = None,
    codec: Annotated[list[str] | None, typer.Option(help=f"Of the features, {CODECS[0]}; repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Of the link.")] = 1,
    table3: Annotated[
        bool, typer.Option("--table3", help="The paper's Table 3: its drafters on one device, over 5G and over 4G.")
    ] = False,
    table7: Annotated[
        bool, typer.Option("--table7", help="Only the paper's Table 7: what messages weigh, by drafter and codec.")
    ] = False,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the results here (PNG).")] = None,
) -> None:
    """Drafting across an emulated link with a real server and client, beside the controls stream and server-draft."""
    plan = Plan(
        target=target_dir() if target is None else resolve_dir(target),
        profiles=profile or (TABLE_3_PROFILES if table3 else (PROFILE,)),
        drafters=drafter or (PAPERS_DRAFTERS if table3 or table7 else DRAFTERS[:1]),
        ways=[way for way in mode or (ClientConfig().mode,) if way not in CONTROLS],
        common={
            "breadth": breadth,
            "levels": levels,
            "budget": budget,
            "wait_for_features": wait_for_features,
            "in_flight": in_flight,
            "outcomes": outcomes,
        },
        pace=pace,
        codec=_codecs(codec)[0],
        engine=engine,
        families=_families(families),
        prompts=prompts,
        max_new_tokens=max_new_tokens,
        prompt_tokens=prompt_tokens,
        runs=runs,
        seed=seed,
    )
    if table7:
        _weigh(plan, _codecs(codec) if codec else list(CODECS), json)
        return
    with progress_line() as step:
        cases = asyncio.run(measure(plan, step))
    _show(cases, table3)
    write_report(json, network_report(cases))
    if plot is not None:
        from outrider_bench.network.plots import plot_network

        plot_network(cases, plot)
    if any(case.mismatches for case in cases):
        raise typer.Exit(1)


def _show(cases: Sequence[Case], table3: bool) -> None:
    for case in cases:
        for line in legend(case):
            console.print(line, markup=False)
        for table in (speed_table, beginning_table, cost_table, split_table, pauses_table):
            console.print(table(case))
        for name, why in case.missing.items():
            console.print(f"no control {name}: {why}", markup=False)
        differing = f"{case.mismatches} answers differ from the stream's" if case.mismatches else "all answers the same"
        console.print(f"{differing}; {len(case.runs)} runs of {case.setting.prompts} prompts")
    if table3:
        console.print(link_table(cases))


def _weigh(plan: Plan, codecs: Sequence[Codec], json: Path | None) -> None:
    with progress_line() as step:
        sizes = asyncio.run(_message_sizes(plan, codecs, step))
    console.print(messages_table(sizes))
    write_report(json, {"pace": plan.pace, "messages": [asdict(one) for one in sizes]})


async def _message_sizes(plan: Plan, codecs: Sequence[Codec], step: Step) -> list[MessageSizes]:
    target = Target.load(str(plan.target))
    padded_width = 0 if plan.pace is None else Pace.load(plan.pace).feature_width
    sizes = []
    for drafter in plan.drafters:
        asked = plan.course(LocalModels.load(plan.config(drafter))).asked
        for codec in codecs:
            config = plan.config(drafter, codec=codec, mode="stop-and-wait")
            counter = Counter(step, f"{drafter}, {codec}", len(asked))
            sizes.append(await message_sizes(drafter, target, config, asked, padded_width, counter))
            if not sizes[-1].width:
                break  # without features, every codec is the same
    return sizes


def _families(text: str) -> list[Family]:
    """Raises UsageError."""
    for name in text.split(","):
        if name not in FAMILIES:
            raise UsageError(f"families={name!r}: choose from {', '.join(FAMILIES)}")
    return [family for family in FAMILIES if family in text.split(",")]


def _codecs(names: Sequence[str] | None) -> list[Codec]:
    """Raises UsageError."""
    for name in names or ():
        if name not in CODECS:
            raise UsageError(f"codec={name!r}: choose from {', '.join(CODECS)}")
    return [cast(Codec, name) for name in names or CODECS[:1]]
