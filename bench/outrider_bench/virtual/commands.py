"""The commands `outrider-bench record`, `virtual` and `sweep`: tapes made, replayed, and replayed over a grid."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outrider_bench.core.in_process_pair import in_process
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
from outrider_bench.network.plan import Plan
from outrider_bench.network.report import Case, Setting, network_report
from outrider_bench.network.tables import beginning_table, cost_table, speed_table, split_table
from outrider_bench.network.ways import Options, Way, with_controls
from outrider_bench.virtual.against import TOLERANCE, pairings, pairings_table
from outrider_bench.virtual.auto_grid import AUTO, AUTO_GRID, stand, standings_table
from outrider_bench.virtual.long_prompts import lengthened
from outrider_bench.virtual.measured_overhead import measured_overhead
from outrider_bench.virtual.overhead import Overhead
from outrider_bench.virtual.record import record
from outrider_bench.virtual.replay import Stage, link_of, replay
from outrider_bench.virtual.sweep import Conditions, Grid, sweep
from outrider_bench.virtual.tape import MARGIN, Tape
from outrider_bench.virtual.texts import Texts
from outrider_bench.virtual.thinning import Thinning, thinned
from outrider_client.core.config import ClientConfig
from outrider_drafters.contracts.tree_choices import Choices
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.emulation.pace import Pace
from outrider_models.core.embedded import DRAFTERS
from outrider_proto.errors import UsageError
from outrider_proto.frames import CODECS

VIRTUAL = (
    "virtual time: taped drafts and answers through the client's own loops; packets as the profile has them, without "
    "congestion control; processor time only as declared"
)
RECORDED = TreeShape(breadth=4, levels=8, budget=32)
PACE = "paper"
WAYS = ("stop-and-wait", "proactive", "pipelined")
TapeOption = Annotated[Path, typer.Option(help="Made by `outrider-bench record`.")]
PaceOption = Annotated[str, typer.Option(help="Hardware: a name or a TOML file.")]
ModeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="MODE[,OPTION=VALUE...]", help=f"Beside the controls; repeatable; {', '.join(WAYS)}."),
]
CodecOption = Annotated[str, typer.Option(help="Of the features.")]
SeedOption = Annotated[int, typer.Option(help="Of links and thinning.")]
console = Console(stderr=True)


def record_command(
    tape: Annotated[Path, typer.Option(help="Write the tape here: .json, or .json.gz.")],
    target: TargetOption = None,
    drafter: Annotated[str, typer.Option(help="Embedded name or DIR[,option=value...].")] = DRAFTERS[0],
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts, as `outrider-bench network` takes them.")] = 12,
    families: FamiliesOption = ALL_FAMILIES,
    max_new_tokens: Annotated[int, typer.Option(min=2, help=f"New tokens an answer; {MARGIN} more are taped.")] = 128,
    breadth: Annotated[int, typer.Option(help="Of the widest trees to be replayed.")] = RECORDED.breadth,
    levels: Annotated[int, typer.Option(help="Of the deepest.")] = RECORDED.levels,
    budget: Annotated[int, typer.Option(help="Of the largest.")] = RECORDED.budget,
    keep: Annotated[int, typer.Option(min=2, help="Likeliest next tokens taped of every node.")] = 24,
) -> None:
    """Tape what the drafter would guess at every token of the target's answers, in process."""
    if keep <= breadth:
        raise UsageError(f"keep={keep}: need more than the breadth, {breadth}, so that a bonus can be foreseen")
    shape = TreeShape(breadth, levels, budget)
    plan = _recording_plan(target, drafter, prompts, families, max_new_tokens)
    with progress_line() as step:
        made = asyncio.run(_record(plan, drafter, shape, keep, step))
    made.save(tape)
    console.print(f"{tape}: {len(made.recordings)} answers of {drafter}, {tape.stat().st_size:,} bytes", markup=False)


def virtual_command(
    tape: TapeOption,
    profile: Annotated[list[str] | None, typer.Option(help="A link, or none; repeatable; paper-5g.")] = None,
    pace: PaceOption = PACE,
    mode: ModeOption = None,
    codec: CodecOption = CODECS[0],
    max_new_tokens: Annotated[int | None, typer.Option(min=2, help="New tokens an answer; all that was taped.")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=0, help="Of each prompt at least; the answers stay the same.")] = 0,
    thin: Annotated[float, typer.Option(help="Share of the tokens that the drafter is not to guess.")] = 0.0,
    breadth: OfTreeOption = None,
    levels: OfTreeOption = None,
    budget: OfTreeOption = None,
    overhead: Annotated[
        Path | None,
        typer.Option(help="A report of `outrider-bench network`: what programs took beside link and pace; none."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Links, of seeds one after the other; figures are medians.")] = 5,
    seed: SeedOption = 1,
    against: Annotated[
        Path | None,
        typer.Option(help="A report of `outrider-bench network` on the same prompts; ends with 1 if off."),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="How far off a speed may be, as a share.")] = TOLERANCE,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Replay a tape over links and hardware in virtual time, beside the controls; keys as `outrider-bench network`."""
    taped = Tape.load(tape)
    texts = Texts(thinned(lengthened(taped, prompt_tokens), Thinning(thin, seed)))
    common = {"breadth": breadth, "levels": levels, "budget": budget}
    ways = _ways(mode, common)
    limit = max_new_tokens or min(recording.limit for recording in taped.recordings)
    names = profile or ["paper-5g"]
    stage = Stage(texts, link_of(names[0]), Pace.load(pace), codec_of(codec), limit)
    added = Overhead() if overhead is None else measured_overhead(overhead, stage, common, seed)
    stages = [replace(stage, profile=link_of(name), overhead=added) for name in names]
    with progress_line() as step:
        cases = [_case(stage, ways, runs, seed, step, prompt_tokens) for stage in stages]
    found = [] if against is None else pairings(cases, against)
    for case in cases:
        for show in (speed_table, beginning_table, cost_table, split_table):
            console.print(show(case))
    if found:
        console.print(pairings_table(found))
    told = network_report(cases)
    told |= {"note": VIRTUAL, "thin": thin, "overhead": asdict(added)}
    told |= {"against": [asdict(one) | {"deviation": one.deviation} for one in found]}
    write_report(json, told)
    if plot is not None:
        from outrider_bench.network.plots import plot_network

        plot_network(cases, plot)
    if any(case.mismatches for case in cases) or any(abs(one.deviation) > tolerance for one in found):
        raise typer.Exit(1)


def sweep_command(
    tape: TapeOption,
    rtt: Annotated[str, typer.Option(help="Round trips in ms.")] = "5,15,30,50,80,120,200",
    verify: Annotated[str, typer.Option(help="Times of a target pass in ms.")] = "6,15,33,60,100",
    thin: Annotated[str, typer.Option(help="Shares of tokens not guessed: the more, the smaller tau.")] = "0,0.1,0.25",
    jitter: Annotated[float, typer.Option(min=0, help="Standard deviation of a way's delay, as a share of it.")] = 0.0,
    rate: Annotated[float, typer.Option(min=0.001, help="Mbit/s, each way.")] = 50.0,
    pace: PaceOption = PACE,
    mode: ModeOption = None,
    codec: CodecOption = CODECS[0],
    breadth: OfTreeOption = None,
    levels: OfTreeOption = None,
    budget: OfTreeOption = None,
    max_new_tokens: NewTokensOption = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Times that all prompts are asked, in one session.")] = 1,
    auto_grid: Annotated[
        bool,
        typer.Option("--auto-grid", help="12 points of its own, auto beside all modes; ends with 1 where it is off."),
    ] = False,
    seed: SeedOption = 1,
    json: JsonOption = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the map here (PNG).")] = None,
) -> None:
    """Which mode wins where, over R x T_v x tau, in virtual time."""
    ways = _ways(mode, {"breadth": breadth, "levels": levels, "budget": budget})
    grid = Grid(_numbers("rtt", rtt), _numbers("verify", verify), _numbers("thin", thin))
    conditions = Conditions(Pace.load(pace), rate * 1e6, jitter, codec_of(codec), max_new_tokens, seed, rounds)
    if auto_grid:
        auto = Way.parse(AUTO, {"breadth": breadth, "levels": levels, "budget": budget})
        _stand(tape, [*ways, auto], conditions, json)
        return
    with progress_line() as step:
        points = sweep(Tape.load(tape), grid, ways, conditions, Counter(step, "points", len(grid)))
    told = [asdict(p) | {"tau": p.tau, "best": p.best, "ratio_to_stream": p.ratio_to_stream} for p in points]
    write_report(json, {"note": VIRTUAL, "conditions": asdict(conditions), "points": told})
    names = [way.name for way in ways]
    for name in names:
        console.print(f"{name}: the fastest at {sum(p.best == name for p in points)} of {len(points)} points")
    if plot is not None:
        from outrider_bench.virtual.sweep_map import plot_sweep

        plot_sweep(grid, points, names, f"the fastest way, and how many times the stream (PACED as {pace})", plot)
    if any(point.mismatches for point in points):
        raise typer.Exit(1)


def _stand(tape: Path, ways: Sequence[Way], conditions: Conditions, json: Path | None) -> None:
    with progress_line() as step:
        counter = Counter(step, "points", 3 * len(AUTO_GRID))
        standings = stand(Tape.load(tape), AUTO_GRID, ways, conditions, counter)
    console.print(standings_table(standings))
    told = [one.as_dict() for one in standings]
    write_report(json, {"note": VIRTUAL, "conditions": asdict(conditions), "points": told})
    if not all(one.holds for one in standings):
        raise typer.Exit(1)


def _recording_plan(target: str | None, drafter: str, prompts: int, families: str, max_new_tokens: int) -> Plan:
    """The network bench's, whose prompts it takes."""
    return Plan(
        target=target_of(target),
        profiles=(),
        drafters=(drafter,),
        ways=(),
        common={},
        pace=None,
        codec="float32",
        engine="auto",
        families=families_of(families),
        prompts=prompts,
        max_new_tokens=max_new_tokens,
        runs=1,
        seed=1,
    )


async def _record(plan: Plan, drafter: str, shape: TreeShape, keep: int, step: Step) -> Tape:
    async with in_process(plan.target, plan.config(drafter)) as pair:
        if pair.models.drafter is None:
            raise UsageError(f"drafter {drafter}: there is nothing to tape")
        asked, own = plan.course(pair.models).asked, pair.models.drafter.plan
        counter = Counter(step, f"taping {drafter}", len(asked))
        tree = own if isinstance(own, Choices) else shape
        prompts = {f"{question.sample.family}-{number}": question.prompt for number, question in enumerate(asked)}
        tape = await record(pair, prompts, tree, keep, plan.max_new_tokens, counter)
    return replace(tape, drafter=drafter)


def _ways(modes: Sequence[str] | None, common: Options) -> list[Way]:
    """The controls and the modes. Raises UsageError."""
    ways = with_controls([Way.parse(text, common) for text in modes or WAYS], common)
    for way in ways:
        way.configured(ClientConfig())
    return ways


def _case(stage: Stage, ways: Sequence[Way], runs: int, seed: int, step: Step, prompt_tokens: int) -> Case:
    counter = Counter(step, stage.profile.name, runs * len(ways) * len(stage.texts.tape.recordings))
    setting = replace(_setting(stage, ways, seed), prompt_tokens=prompt_tokens)
    return Case(setting, ways, {}, [replay(stage, ways, seed + n, counter) for n in range(runs)])


def _setting(stage: Stage, ways: Sequence[Way], seed: int) -> Setting:
    tape = stage.texts.tape
    choices = None if tape.choices is None else Choices(tape.choices)
    shape = ways[-1].configured(stage.config).shape or choices or TreeShape()
    return Setting(
        profile=stage.profile.name,
        engine="virtual",
        why=VIRTUAL,
        round_trip_ms=stage.profile.round_trip_ms,
        drafter=tape.drafter,
        codec=stage.codec,
        pace=stage.pace.name,
        hardware=asdict(stage.pace),
        families=sorted({recording.name.partition("-")[0] for recording in tape.recordings}),
        prompts=len(tape.recordings),
        max_new_tokens=stage.max_new_tokens,
        seed=seed,
        tree=asdict(shape),
    )


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{name}={text!r}: need numbers separated by commas") from None
