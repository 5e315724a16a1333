"""Commands on the embedded pair, or another target and drafters: eval, exact, overhead, recover, verify-cost."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from outrider_bench.cli.options import JsonOption, PlotOption, TargetDirOption, TargetOption, drafters_of
from outrider_bench.core.progress import ProgressCounter, progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import show, show_line
from outrider_models.core.embedded import PAIR, target_dir
from outrider_proto.errors import UsageError

DraftersOption = Annotated[
    list[str] | None,
    typer.Option("--drafter", help=f"Embedded name or directory; repeatable; default: {', '.join(PAIR)}."),
]
PromptsOption = Annotated[int, typer.Option("--prompts", min=1, help="Held-out prompts, spread over the families.")]


def eval_command(
    target: TargetDirOption = None,
    drafter: DraftersOption = None,
    per_family: Annotated[int, typer.Option(min=1, help="Questions per family, code excepted.")] = 100,
    code: Annotated[int, typer.Option(min=1, help="Questions of the code family.")] = 164,
    tau_per_family: Annotated[
        int, typer.Option(min=1, help="Questions per family for the mean acceptance lengths.")
    ] = 30,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Score the target, measure the drafters' acceptance, and score code written after the link has died."""
    from outrider_bench.studies.pair.evaluation import (
        EvaluationPlan,
        acceptance_table,
        evaluate,
        outage_table,
        scores_table,
    )

    plan = EvaluationPlan(target or target_dir(), _drafters(drafter), per_family, code, tau_per_family)
    with progress_line() as step:
        evaluation = asyncio.run(evaluate(plan, step))
    show(scores_table(evaluation), acceptance_table(evaluation), outage_table(evaluation))
    write_report(json, evaluation.as_dict())
    if plot is not None:
        from outrider_bench.studies.pair.plots import plot_evaluation

        plot_evaluation(evaluation, plot)
    if any(a.mismatches for result in evaluation.drafters.values() for a in result.acceptance.values()):
        raise typer.Exit(1)


def exact_command(
    target: TargetDirOption = None,
    drafter: DraftersOption = None,
    prompts: PromptsOption = 200,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="New tokens per answer.")] = 96,
    json: JsonOption = None,
) -> None:
    """Compare answers in process and over gRPC, token for token, with transformers' generate in float32."""
    from outrider_bench.studies.pair.exact import compare_with_generate

    directory, drafters = target or target_dir(), _drafters(drafter)
    with progress_line() as step:
        report = asyncio.run(compare_with_generate(directory, drafters, prompts, max_new_tokens, step))
    for name, differing in report.items():
        show_line(f"{name}: {prompts - len(differing)} of {prompts} identical")
    write_report(json, {"prompts": prompts, "differing": report})
    if any(report.values()):
        raise typer.Exit(1)


def overhead_command(
    target: TargetDirOption = None,
    drafter: DraftersOption = None,
    prompts: PromptsOption = 30,
    json: JsonOption = None,
) -> None:
    """Measure where the time of a cycle goes over gRPC on loopback; medians in ms."""
    from outrider_bench.studies.pair.overhead import measure_overhead, overhead_table

    with progress_line() as step:
        report = asyncio.run(measure_overhead(target or target_dir(), _drafters(drafter), prompts, step))
    show(overhead_table(report))
    write_report(json, report)


def recover_command(
    target: TargetDirOption = None,
    drafter: DraftersOption = None,
    prompts: PromptsOption = 20,
    seed: Annotated[int, typer.Option(help="Random seed for the moments at which the server is killed.")] = 1,
    json: JsonOption = None,
) -> None:
    """Kill and restart the server in mid-answer, and compare the verified answer with the undisturbed one."""
    from outrider_bench.studies.pair.recover import measure_recoveries, recovery_table

    name, directory = next(iter(_drafters(drafter).items()))
    with progress_line() as step:
        report = asyncio.run(measure_recoveries(target or target_dir(), directory, prompts, seed, step))
    show(recovery_table(report))
    good = sum(recovery.identical for recovery in report)
    show_line(f"{name}: {good} of {len(report)} identical to the undisturbed answer")
    write_report(json, {"recoveries": [asdict(recovery) for recovery in report]})
    if good < len(report):
        raise typer.Exit(1)


def verify_cost_command(
    target: TargetOption = None,
    context: Annotated[int, typer.Option(help="Tokens of context before the pass.")] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Passes of each size.")] = 30,
    dtype: Annotated[str, typer.Option(help="Type of the target's weights: float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="Device of the target: cpu, cuda, cuda:1, ...")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; default: as the server, 1 for a small target.")
    ] = None,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Measure what a pass over 1, 2, 4, ... 64 new tokens costs the target, against a decode of one; medians."""
    import torch

    from outrider_bench.studies.pair.verify_cost import device_name, verify_cost_table, verify_costs
    from outrider_server.engine.target import Target

    loaded = Target.load(target or str(target_dir()), dtype, device)
    if (count := threads or (1 if loaded.is_small else None)) is not None:
        torch.set_num_threads(count)
    with progress_line() as step:
        costs = verify_costs(loaded, context, repeats, ProgressCounter(step, "passes", repeats))
    show(verify_cost_table(loaded.name, context, costs))
    how = {"target": loaded.name, "context": context, "repeats": repeats, "dtype": dtype, "device": device_name(device)}
    write_report(json, {**how, "costs": [asdict(cost) for cost in costs]})
    if plot is not None:
        from outrider_bench.studies.pair.plots import plot_verify_costs

        plot_verify_costs(f"{loaded.name}, {dtype}, {device_name(device)}, {context} tokens before", costs, plot)


def _drafters(names: list[str] | None) -> dict[str, Path]:
    """Return the drafters' directories by name. Raises UsageError for one without a config.json."""
    found = drafters_of(names or list(PAIR))
    for name, directory in found.items():
        if not (directory / "config.json").is_file():
            raise UsageError(f"drafter {name}: no config.json in {directory}")
    return found
