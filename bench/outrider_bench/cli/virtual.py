"""The commands `outrider-bench record`, `virtual` and `sweep`: tapes recorded, replayed, and replayed over a grid."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_bench.core.progress import ProgressCounter, progress_line
from outrider_bench.core.report import CsvFile, write_report
from outrider_bench.core.tables import show, show_line
from outrider_bench.harness.options import (
    DEFAULT_CODEC,
    BreadthOption,
    BudgetOption,
    DrafterOption,
    FamiliesOption,
    JsonOption,
    LevelsOption,
    NewTokensOption,
    PlotOption,
    QuestionsOption,
    TargetOption,
    codec_of,
    drafter_for,
    source_of,
    target_of,
)
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from outrider_bench.network.variants import ModeVariant
    from outrider_bench.virtual.sweep import SweepConditions

PACE = "paper"
MODES = ("stop-and-wait", "proactive", "pipelined")
MAX_DEVIATION = 0.10  # of a virtual speed from the real one, as a share
TapeOption = Annotated[Path, typer.Option(help="Tape made by `outrider-bench record`.")]
PaceOption = Annotated[str, typer.Option(help="Hardware to emulate: a name or a TOML file.")]
ModeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODE[,OPTION=VALUE...]",
        help=f"Mode to replay beside the controls; repeatable; default: {', '.join(MODES)}.",
    ),
]
CodecOption = Annotated[str, typer.Option(help="Feature codec.")]
CsvOption = Annotated[Path | None, typer.Option("--csv", help="Write a row per answer to this CSV file.")]
SeedOption = Annotated[int, typer.Option(help="Random seed of the links, and of --thin.")]


def record_command(
    tape: Annotated[Path, typer.Option(help="Write the tape to this file: .json, or .json.gz.")],
    target: TargetOption = None,
    drafter: DrafterOption = None,
    questions: QuestionsOption = None,
    prompts: Annotated[
        int | None,
        typer.Option(
            min=1, help="Questions, as `outrider-bench network` takes them; default: 24, or all of --questions."
        ),
    ] = None,
    families: FamiliesOption = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=2, help="New tokens per answer that a replay may ask for; 16 more are taped.")
    ] = 128,
    breadth: Annotated[int, typer.Option(help="Breadth of the widest trees to be replayed.")] = 4,
    levels: Annotated[int, typer.Option(help="Levels of the deepest trees to be replayed.")] = 8,
    budget: Annotated[int, typer.Option(help="Nodes of the largest trees to be replayed.")] = 32,
    keep: Annotated[int, typer.Option(min=2, help="Most likely next tokens taped per node.")] = 24,
) -> None:
    """Tape what the drafter would draft at every token of the target's answers, in process."""
    if keep <= breadth:
        raise UsageError(f"keep={keep}: need more than the breadth, {breadth}, so that a bonus can be predicted")

    from outrider_bench.network.experiment import DEFAULT_PROMPTS
    from outrider_bench.network.plan import NetworkPlan
    from outrider_bench.virtual.record import record_plan
    from outrider_drafters.contracts.tree_shape import TreeShape

    shape = TreeShape(breadth, levels, budget)
    directory = target_of(target)
    named = drafter_for(directory, drafter)
    plan = NetworkPlan(
        target=directory,
        profiles=(),
        drafters=(named,),
        variants=(),
        common={},
        pace=None,
        codec="float32",
        engine="auto",
        source=source_of(directory, questions, families),
        prompts=DEFAULT_PROMPTS if prompts is None and questions is None else prompts,
        max_new_tokens=max_new_tokens,
        runs=1,
        seeds=(1,),
    )
    with progress_line() as step:
        made = asyncio.run(record_plan(plan, named, shape, keep, step))
    made.save(tape)
    show_line(f"{tape}: {len(made.recordings)} answers of {named}, {tape.stat().st_size:,} bytes")


def virtual_command(
    tape: TapeOption,
    profile: Annotated[
        list[str] | None,
        typer.Option(help="Profile, or none; repeatable; default: those of --against, or paper-5g."),
    ] = None,
    pace: PaceOption = PACE,
    mode: ModeOption = None,
    codec: CodecOption = DEFAULT_CODEC,
    questions: Annotated[
        Path | None, typer.Option(help="Replay only the answers to the questions of this file; default: all.")
    ] = None,
    families: Annotated[
        str | None, typer.Option(help="Replay only these families or categories, separated by commas; default: all.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=2, help="New tokens per answer; default: all that were taped.")
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=0, help="Lengthen prompts to at least this many tokens; the answers stay the same.")
    ] = 0,
    thin: Annotated[float, typer.Option(help="Share of the answers' tokens that the drafter shall miss.")] = 0.0,
    breadth: BreadthOption = None,
    levels: LevelsOption = None,
    budget: BudgetOption = None,
    overhead: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE[,case=PROFILE][,runs=odd|even|N+N...]|leave-one-out",
            help="Report of `outrider-bench network` on which to fit the time that programs need beside link and pace; "
            "repeatable: the mean. leave-one-out: on the other profiles of --against. Default: no such time.",
        ),
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Links with consecutive seeds to replay over; results are medians.")
    ] = 5,
    seed: SeedOption = 1,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE[,case=PROFILE][,runs=odd|even|N+N...]",
            help="Report of `outrider-bench network` on the same prompts to compare with; repeatable; 1 when too far "
            "off. Every row says whether the overhead was fitted on it (in sample).",
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest deviation of a speed from that report, as a share.")
    ] = MAX_DEVIATION,
    csv: CsvOption = None,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Replay a tape over links and hardware in virtual time; report keys as in `outrider-bench network`."""
    from outrider_bench.network.report import network_report
    from outrider_bench.network.tables import cost_table, first_token_table, speed_table, split_table
    from outrider_bench.virtual.comparison import compare_with_real, comparison_table, summary, summary_lines
    from outrider_bench.virtual.overhead_fit import fit_overheads
    from outrider_bench.virtual.real_report import real_cases
    from outrider_bench.virtual.replay import VIRTUAL_NOTE, ReplaySetup, link_of, replay_scenario
    from outrider_bench.virtual.tape import Tape, lengthened, only
    from outrider_bench.virtual.texts import TapedTexts
    from outrider_bench.virtual.thinning import Thinning, thinned
    from outrider_drafters.emulation.pace import Pace
    from outrider_models.core.questions import read_questions

    asked = None if questions is None else read_questions(questions)
    taped = only(Tape.load(tape), asked, None if families is None else families.split(","))
    texts = TapedTexts(thinned(lengthened(taped, prompt_tokens), Thinning(thin, seed)))
    common = {"breadth": breadth, "levels": levels, "budget": budget}
    variants = _variants(mode or MODES, common)
    limit = max_new_tokens or min(recording.limit for recording in taped.recordings)
    judges = real_cases(against or ())
    names = profile or list(dict.fromkeys(judge.profile for judge in judges)) or ["paper-5g"]
    setup = ReplaySetup(texts, link_of(names[0]), Pace.load(pace), codec_of(codec), limit)
    fits = fit_overheads(overhead or (), judges, names, setup, common, seed)
    setups = [replace(setup, profile=link_of(name), overhead=fits[name].overhead) for name in names]
    with CsvFile(csv) as table_file, progress_line() as step:
        scenarios = []
        for setup in setups:
            scenarios.append(replay_scenario(setup, variants, runs, seed, step, prompt_tokens))
            table_file.write(scenarios[-1].answers)
    comparisons = compare_with_real(scenarios, fits, judges) if judges else []
    for scenario in scenarios:
        for table in (speed_table, first_token_table, cost_table, split_table):
            show(table(scenario))
    if comparisons:
        show(comparison_table(comparisons))
        for line in summary_lines(comparisons):
            show_line(line)
    report = network_report(scenarios)
    by_profile = {name: fit.as_dict() for name, fit in fits.items()}
    report |= {"note": VIRTUAL_NOTE, "thin": thin, "overhead": asdict(fits[names[0]].overhead), "overheads": by_profile}
    report |= {"against": [one.as_dict() for one in comparisons], "samples": summary(comparisons)}
    write_report(json, report)
    if plot is not None:
        from outrider_bench.network.plots import plot_network

        plot_network(scenarios, plot)
    is_off = any(abs(one.deviation) > tolerance for one in comparisons)
    if is_off or any(scenario.mismatches for scenario in scenarios):
        raise typer.Exit(1)


def sweep_command(
    tape: TapeOption,
    rtt: Annotated[str, typer.Option(help="Round-trip times R in ms, separated by commas.")] = "5,15,30,50,80,120,200",
    verify: Annotated[
        str, typer.Option(help="Times T_v of a target pass in ms, separated by commas.")
    ] = "6,15,33,60,100",
    thin: Annotated[
        str, typer.Option(help="Shares of the tokens that the drafter shall miss; the larger, the smaller tau.")
    ] = "0,0.1,0.25",
    jitter: Annotated[
        float, typer.Option(min=0, help="Standard deviation of a one-way delay, as a share of it.")
    ] = 0.0,
    rate: Annotated[float, typer.Option(min=0.001, help="Rate of the link in Mbit/s, each way.")] = 50.0,
    pace: PaceOption = PACE,
    mode: ModeOption = None,
    codec: CodecOption = DEFAULT_CODEC,
    breadth: BreadthOption = None,
    levels: LevelsOption = None,
    budget: BudgetOption = None,
    max_new_tokens: NewTokensOption = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Times that all prompts are asked, in one session.")] = 1,
    auto_grid: Annotated[
        bool,
        typer.Option(
            "--auto-grid", help="Compare auto with all modes at 12 points of its own; 1 where auto falls short."
        ),
    ] = False,
    seed: SeedOption = 1,
    csv: CsvOption = None,
    json: JsonOption = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the map to this PNG file.")] = None,
) -> None:
    """Map which mode is the fastest over R x T_v x tau, in virtual time."""
    from outrider_bench.network.variants import ModeVariant
    from outrider_bench.virtual.auto_grid import AUTO
    from outrider_bench.virtual.replay import VIRTUAL_NOTE
    from outrider_bench.virtual.sweep import SweepConditions, SweepGrid, sweep
    from outrider_bench.virtual.tape import Tape
    from outrider_drafters.emulation.pace import Pace

    common = {"breadth": breadth, "levels": levels, "budget": budget}
    variants = _variants(mode or MODES, common)
    grid = SweepGrid(_numbers("rtt", rtt), _numbers("verify", verify), _numbers("thin", thin))
    conditions = SweepConditions(Pace.load(pace), rate * 1e6, jitter, codec_of(codec), max_new_tokens, seed, rounds)
    if auto_grid:
        _measure_auto(tape, [*variants, ModeVariant.parse(AUTO, common)], conditions, csv, json)
        return
    with CsvFile(csv) as table_file, progress_line() as step:
        counter = ProgressCounter(step, "points", len(grid))
        points = sweep(Tape.load(tape), grid, variants, conditions, counter, table_file.write)
    as_dicts = [
        asdict(p) | {"tau": p.tau, "best": p.best, "ratio_to_stream": p.ratio_to_stream, "decided": p.is_decided}
        for p in points
    ]
    write_report(json, {"note": VIRTUAL_NOTE, "conditions": asdict(conditions), "points": as_dicts})
    names = [variant.name for variant in variants]
    for name in names:
        won = [point for point in points if point.best == name]
        undecided = sum(point.is_decided is False for point in won)
        of_those = f", {undecided} of those within the 95 % interval of the second" if undecided else ""
        show_line(f"{name}: the fastest at {len(won)} of {len(points)} points{of_those}")
    if plot is not None:
        from outrider_bench.virtual.sweep import plot_sweep

        title = f"the fastest mode, and how many times the stream (PACED as {pace})\n~: not beyond the second's 95 %"
        plot_sweep(grid, points, names, title, plot)
    if any(point.mismatches for point in points):
        raise typer.Exit(1)


def _measure_auto(
    tape: Path, variants: Sequence[ModeVariant], conditions: SweepConditions, csv: Path | None, json: Path | None
) -> None:
    from outrider_bench.virtual.auto_grid import AUTO_GRID, auto_table, measure_auto
    from outrider_bench.virtual.replay import VIRTUAL_NOTE
    from outrider_bench.virtual.tape import Tape

    with CsvFile(csv) as table_file, progress_line() as step:
        counter = ProgressCounter(step, "points", 3 * len(AUTO_GRID))
        results = measure_auto(Tape.load(tape), AUTO_GRID, variants, conditions, counter, table_file.write)
    show(auto_table(results))
    points = [one.as_dict() for one in results]
    write_report(json, {"note": VIRTUAL_NOTE, "conditions": asdict(conditions), "points": points})
    if not all(one.holds for one in results):
        raise typer.Exit(1)


def _variants(modes: Sequence[str], common: dict[str, int | None]) -> list[ModeVariant]:
    """Return the controls and the modes. Raises UsageError."""
    from outrider_bench.network.variants import ModeVariant, with_controls
    from outrider_client.core.config import ClientConfig

    variants = with_controls([ModeVariant.parse(text, common) for text in modes], common)
    for variant in variants:
        variant.configured(ClientConfig())
    return variants


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{name}={text!r}: need numbers separated by commas") from None
