"""`outrider-bench network`: options in; tables, report and picture out. Ends with 1 when answers differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from outrider_bench.core.options import (
    ALL_FAMILIES,
    FamiliesOption,
    JsonOption,
    NewTokensOption,
    OfTreeOption,
    PlotOption,
    TargetOption,
    codec_of,
    families_of,
    target_of,
)
from outrider_bench.core.progress import Counter, Step, progress_line
from outrider_bench.core.report import write_report
from outrider_bench.network.messages import MessageSizes, message_sizes
from outrider_bench.network.options import (
    MODE,
    PROFILE,
    CodecsOption,
    DraftersOption,
    EngineOption,
    InFlightOption,
    ModesOption,
    OutcomesOption,
    PaceOption,
    ProfilesOption,
    PromptsOption,
    PromptTokensOption,
    RunsOption,
    SeedOption,
    Table3Option,
    Table7Option,
    WaitOption,
)
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
from outrider_client.models.local_models import LocalModels
from outrider_drafters.emulation.pace import Pace
from outrider_models.core.embedded import DRAFTERS
from outrider_proto.frames import CODECS, Codec
from outrider_server.engine.target import Target

TABLE_3_PROFILES = (NO_LINK, "paper-5g", "paper-4g")
PAPERS_DRAFTERS = ("moa_tli1", "moa", "eagle2", "independent")
console = Console(stderr=True)


def network_command(
    profile: ProfilesOption = None,
    pace: PaceOption = None,
    target: TargetOption = None,
    drafter: DraftersOption = None,
    mode: ModesOption = None,
    prompts: PromptsOption = 12,
    families: FamiliesOption = ALL_FAMILIES,
    max_new_tokens: NewTokensOption = 128,
    prompt_tokens: PromptTokensOption = 0,
    runs: RunsOption = 1,
    engine: EngineOption = "auto",
    breadth: OfTreeOption = None,
    levels: OfTreeOption = None,
    budget: OfTreeOption = None,
    wait_for_features: WaitOption = None,
    in_flight: InFlightOption = None,
    outcomes: OutcomesOption = None,
    codec: CodecsOption = None,
    seed: SeedOption = 1,
    table3: Table3Option = False,
    table7: Table7Option = False,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Drafting across an emulated link with a real server and client, beside the controls stream and server-draft."""
    codecs = [codec_of(name) for name in codec or CODECS]
    plan = Plan(
        target=target_of(target),
        profiles=profile or (TABLE_3_PROFILES if table3 else (PROFILE,)),
        drafters=drafter or (PAPERS_DRAFTERS if table3 or table7 else DRAFTERS[:1]),
        ways=[way for way in mode or (MODE,) if way not in CONTROLS],
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
        _weigh(plan, codecs, json)
    else:
        _measure(plan, table3, json, plot)


def _measure(plan: Plan, table3: bool, json: Path | None, plot: Path | None) -> None:
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
