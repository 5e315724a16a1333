"""Commands on a target and its drafters, by default the embedded pair: their quality, exactness and costs."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from outrider_bench.cli.options import (
    FamiliesOption,
    JsonOption,
    LimitOption,
    PlotOption,
    QuestionsOption,
    TargetDirOption,
    TargetOption,
    drafters_for,
    drafters_of,
    source_of,
    sources_of,
    target_of,
)
from outrider_bench.core.progress import ProgressCounter, progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import show, show_line
from outrider_models.core.embedded import PAIR, target_dir, target_source
from outrider_proto.errors import UsageError

DraftersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        help=f"Name of one that ships, DIR[,option=value...] or lookup; repeatable; default: {', '.join(PAIR)} of the "
        "embedded target, of others all that ship, or else lookup.",
    ),
]
DEFAULT_TAU_PER_FAMILY, DEFAULT_EXACT_PROMPTS, DEFAULT_OFFLINE_PROMPTS = 30, 200, 60  # of the corpus
PromptsOption = Annotated[int, typer.Option("--prompts", min=1, help="Held-out prompts, spread over the families.")]


def eval_command(
    target: TargetOption = None,
    drafter: DraftersOption = None,
    questions: QuestionsOption = None,
    families: FamiliesOption = None,
    per_family: Annotated[int, typer.Option(min=1, help="Questions per family of the corpus, code excepted.")] = 100,
    code: Annotated[int, typer.Option(min=1, help="Questions of the corpus' code family.")] = 164,
    tau_per_family: Annotated[
        int | None,
        typer.Option(
            min=1, help="Questions per family for the mean acceptance lengths; default: 30, or all of --questions."
        ),
    ] = None,
    max_new_tokens: LimitOption = 192,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Score the target, measure the drafters' acceptance, and score code written after the link has died.

    With --questions only acceptance: nobody says there which answer is right.
    """
    from outrider_bench.studies.pair.evaluation import (
        EvaluationPlan,
        acceptance_table,
        evaluate,
        outage_table,
        scores_table,
    )

    directory = target_of(target)
    source = source_of(directory, questions, families)
    named = drafters_for(directory, drafter, PAIR)
    of_tau = DEFAULT_TAU_PER_FAMILY if tau_per_family is None and questions is None else tau_per_family
    plan = EvaluationPlan(directory, sources_of(named), source, per_family, code, of_tau, max_new_tokens)
    with progress_line() as step:
        evaluation = asyncio.run(evaluate(plan, step))
    show(*([scores_table(evaluation)] if evaluation.scores else []), acceptance_table(evaluation))
    show(*([outage_table(evaluation)] if evaluation.stop else []))
    write_report(json, evaluation.as_dict())
    if plot is not None:
        from outrider_bench.studies.pair.plots import plot_evaluation

        plot_evaluation(evaluation, plot)
    if any(a.mismatches for result in evaluation.drafters.values() for a in result.acceptance.values()):
        raise typer.Exit(1)


def exact_command(
    target: TargetOption = None,
    drafter: DraftersOption = None,
    questions: QuestionsOption = None,
    prompts: Annotated[
        int | None,
        typer.Option(min=1, help="Questions, the families in turn; default: 200, or all of --questions."),
    ] = None,
    max_new_tokens: LimitOption = 96,
    dtype: Annotated[str, typer.Option(help="Type of the target's weights: float32, bfloat16 or float16.")] = "float32",
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Serve with --batch-invariant: then no answer may differ.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Compare answers in process and over gRPC, token for token, with transformers' generate.

    In bfloat16 and float16 with the plain loop, and an answer may depart from it where two tokens are a near-tie.
    """
    from outrider_bench.studies.pair.exact import ExactPlan, exactness_table, measure_exactness

    directory = target_of(target)
    source = source_of(directory, questions, None)
    count = DEFAULT_EXACT_PROMPTS if prompts is None and questions is None else prompts
    drafters = sources_of(drafters_for(directory, drafter, PAIR))
    plan = ExactPlan(directory, drafters, source, count, max_new_tokens, dtype, batch_invariant)
    with progress_line() as step:
        result = asyncio.run(measure_exactness(plan, step))
    show(exactness_table(result))
    for way in result.ways:
        for at in result.failures(way):
            show_line(f"{way}: {at}", style="red")
    write_report(json, result.as_dict())
    if not result.is_exact:
        raise typer.Exit(1)


def offline_command(
    target: TargetOption = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Name of one that ships, DIR[,option=value...] or lookup; repeatable; default: all that ship for the "
            "target, or else lookup.",
        ),
    ] = None,
    questions: QuestionsOption = None,
    families: FamiliesOption = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Questions, the families in turn; default: 60, or all of --questions.")
    ] = None,
    cut_at: Annotated[int, typer.Option(min=1, help="Tokens of the answer after which the link dies.")] = 32,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens that the drafter writes from there on.")] = 64,
    json: JsonOption = None,
) -> None:
    """Measure what drafters write when the link dies: how long it stays readable, and what the target keeps of it."""
    from outrider_bench.studies.pair.offline import OfflinePlan, measure_offline_quality
    from outrider_bench.studies.pair.offline_figures import circles_table, kept_table, perplexity_table

    directory = target_of(target)
    source = source_of(directory, questions, families)
    count = DEFAULT_OFFLINE_PROMPTS if prompts is None and questions is None else prompts
    plan = OfflinePlan(directory, sources_of(drafters_for(directory, drafter)), source, count, cut_at, tokens)
    with progress_line() as step:
        result = asyncio.run(measure_offline_quality(plan, step))
    show(kept_table(result), perplexity_table(result), circles_table(result))
    if result.left_out:
        show_line(f"{result.left_out} answers are left out: they end before the cut")
    write_report(json, asdict(result))
    if any(result.mismatches.values()):
        show_line(f"the last token before the cut is not the target's: {dict(result.mismatches)}", style="red")
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
    plain: Annotated[
        bool, typer.Option("--plain", help="Run transformers' own forward pass where the fused one would run.")
    ] = False,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Measure what a pass over 1, 2, 4, ... 64 new tokens costs the target, against a decode of one; medians."""
    import torch

    from outrider_bench.studies.pair.verify_cost import device_name, verify_cost_table, verify_costs
    from outrider_server.engine.target import Target

    loaded = Target.load(str(target_source(target)), dtype, device, fused=not plain)
    if (count := threads or (1 if loaded.is_small else None)) is not None:
        torch.set_num_threads(count)
    with progress_line() as step:
        costs = verify_costs(loaded, context, repeats, ProgressCounter(step, "passes", repeats))
    show(verify_cost_table(loaded.name, context, costs))
    how = {"target": loaded.name, "context": context, "repeats": repeats, "dtype": dtype, "device": device_name(device)}
    how["pass"] = "plain" if loaded.fused is None else "fused"
    write_report(json, {**how, "costs": [asdict(cost) for cost in costs]})
    if plot is not None:
        from outrider_bench.studies.pair.plots import plot_verify_costs

        plot_verify_costs(f"{loaded.name}, {dtype}, {device_name(device)}, {context} tokens before", costs, plot)


def passes_command(
    target: TargetOption = None,
    context: Annotated[int, typer.Option(help="Tokens of context of every session.")] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes of each kind.")] = 10,
    plain: Annotated[
        bool, typer.Option("--plain", help="Run transformers' own forward pass where the fused one would be faster.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Count what a pass over 1, 8 and 32 sessions asks of its host: operations, reads, Python's time. Needs no GPU.

    Without --target in the shape of Llama-3-8B; of a target, only the config is read.
    """
    import torch

    from outrider_bench.studies.pair.passes import hollow_target, llama_8b, num_kinds, pass_cost_table, pass_costs

    torch.set_num_threads(1)
    hollow = llama_8b(plain=plain) if target is None else hollow_target(str(target_source(target)), plain=plain)
    with progress_line() as step:
        costs = pass_costs(hollow, context, repeats, ProgressCounter(step, "kinds of passes", num_kinds()))
    show(pass_cost_table(hollow, context, costs))
    how = {"target": hollow.target.name, "layers": hollow.num_layers, "context": context, "repeats": repeats}
    how["pass"] = "plain" if hollow.target.fused is None else "fused"
    write_report(json, {**how, "costs": [asdict(cost) for cost in costs]})


def _drafters(names: list[str] | None) -> dict[str, Path]:
    """Return the drafters' directories by name. Raises UsageError for one without a config.json."""
    found = drafters_of(names or list(PAIR))
    for name, directory in found.items():
        if not (directory / "config.json").is_file():
            raise UsageError(f"drafter {name}: no config.json in {directory}")
    return found
