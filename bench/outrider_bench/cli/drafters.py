"""Commands that compare drafters: trace, drafters, depth-sweep, edge-weights, routing."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from outrider_bench.cli.options import (
    BreadthOption,
    BudgetOption,
    DrafterOption,
    FamiliesOption,
    JsonOption,
    LevelsOption,
    LimitOption,
    OrderSeedOption,
    PerFamilyOption,
    PlotOption,
    QuestionsOption,
    QuestionsPerFamilyOption,
    RepetitionsOption,
    TargetOption,
    drafter_for,
    drafters_for,
    source_of,
    target_of,
)
from outrider_bench.core.progress import progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import show
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_models.core.embedded import PAIR, drafter_source
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling

if TYPE_CHECKING:
    from outrider_bench.studies.drafters.comparison import Comparison

DOMAIN_HEADS = ("eagle2_math", "eagle2_chat")
_TREE = TreeShape()
_SAMPLING = Sampling()


def trace_command(
    target: Annotated[
        str, typer.Option(help="Target: directory, GGUF file, hub name, or name got with `outrider-models get`.")
    ],
    drafter: Annotated[
        str, typer.Option(help="Directory or hub name of the drafter, or lookup; options follow as ,KEY=VALUE.")
    ],
    prompt_ids: Annotated[
        str | None, typer.Option(help="Token ids of the prompt, separated by commas; or give --questions.")
    ] = None,
    questions: QuestionsOption = None,
    families: FamiliesOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="New tokens at most.")] = 64,
    breadth: Annotated[
        int | None, typer.Option(help=f"Nodes expanded per level, and children of each; default: {_TREE.breadth}.")
    ] = None,
    levels: Annotated[int | None, typer.Option(help=f"Levels of a draft tree; default: {_TREE.levels}.")] = None,
    budget: Annotated[
        int | None, typer.Option(help=f"Nodes of a draft tree without its root; default: {_TREE.budget}.")
    ] = None,
    min_probability: Annotated[
        float | None, typer.Option(help="Draft only paths of at least this probability; default: 0.")
    ] = None,
    choices: Annotated[
        str | None,
        typer.Option(help="Fixed tree: the name of a shipped set, or a JSON list of paths of child ranks."),
    ] = None,
    tli: Annotated[int | None, typer.Option(help="Target layers that a MoA drafter runs on the client.")] = None,
    acceptance: Annotated[
        str, typer.Option(help="Acceptance rule: greedy, sampling, or typical, which is lossy.")
    ] = "greedy",
    temperature: Annotated[float, typer.Option(help="Temperature for sampling and typical.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Top-k for sampling and typical; 0 turns it off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Top-p for sampling and typical; 1 turns it off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Random seed for sampling.")] = 0,
    epsilon: Annotated[
        float, typer.Option(help="For typical: a token of this probability is always accepted.")
    ] = _SAMPLING.epsilon,
    alpha: Annotated[
        float, typer.Option(help="For typical: accept from this share of exp(-entropy) on.")
    ] = _SAMPLING.alpha,
    baseline: Annotated[bool, typer.Option("--baseline", help="Also run the target alone, and compare.")] = False,
    json: JsonOption = Path("-"),
) -> None:
    """Trace answers in process, cycle by cycle; without limits or choices, with the drafter's own trees."""
    from outrider_bench.studies.drafters.trace import (
        TraceRequest,
        read_sampling,
        read_source,
        read_token_ids,
        trace,
        trace_questions,
    )
    from outrider_client.cli.options import tree_plan

    if (prompt_ids is None) == (questions is None):
        raise UsageError("what to ask: need either --prompt-ids or --questions")
    directory = target_of(target)
    request = TraceRequest(
        target=directory,
        drafter=read_source(drafter, tli),
        prompt_ids=() if prompt_ids is None else read_token_ids(prompt_ids),
        max_new_tokens=max_new_tokens,
        plan=tree_plan(choices, breadth=breadth, levels=levels, budget=budget, min_probability=min_probability),
        sampling=read_sampling(acceptance, temperature, top_k, top_p, seed=seed, epsilon=epsilon, alpha=alpha),
        baseline=baseline,
    )
    if questions is None:
        report = asyncio.run(trace(request))
        traced = [report]
    else:
        report = asyncio.run(trace_questions(request, source_of(directory, questions, families)))
        traced = cast(list[dict[str, object]], report["questions"])
    write_report(json, report)
    lossless = request.sampling.acceptance == "exact"
    if baseline and lossless and not all(one["matches_baseline"] for one in traced):
        raise typer.Exit(1)


def drafters_command(
    target: TargetOption = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Name of one that ships, DIR[,option=value...], lookup or suffix; repeatable; default: all that ship.",
        ),
    ] = None,
    assistant: Annotated[
        list[Path] | None,
        typer.Option("--assistant", help="Small model for transformers' assisted generation; repeatable."),
    ] = None,
    questions: QuestionsOption = None,
    before: Annotated[
        Path | None,
        typer.Option(
            help="Questions asked before, as --questions: every drafter also drafts from a history of their answers."
        ),
    ] = None,
    families: FamiliesOption = None,
    per_family: QuestionsPerFamilyOption = None,
    repetitions: RepetitionsOption = 3,
    seed: OrderSeedOption = 1,
    max_new_tokens: LimitOption = 128,
    breadth: BreadthOption = None,
    levels: LevelsOption = None,
    budget: BudgetOption = None,
    choices: Annotated[
        str | None, typer.Option(help="Fixed trees for all drafters: the name of a shipped set, or a file.")
    ] = None,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Compare drafters with the plain loop and transformers' own methods: acceptance, cost and speed."""
    from outrider_bench.studies.drafters.comparison import compare_drafters, drafter_entry, drafter_label
    from outrider_bench.studies.drafters.comparison_report import families_table, positions_table, speeds_table
    from outrider_client.cli.options import tree_plan

    plan = tree_plan(choices, breadth=breadth, levels=levels, budget=budget)
    directory = target_of(target)
    source = source_of(directory, questions, families)
    entries = {drafter_label(name): drafter_entry(directory, name, plan) for name in drafters_for(directory, drafter)}
    with progress_line() as step:
        result = compare_drafters(
            directory,
            source,
            entries,
            assistant or (),
            per_family,
            max_new_tokens,
            repetitions,
            seed,
            step,
            None if before is None else source_of(directory, before, None),
        )
    show(families_table(result), positions_table(result), speeds_table(result))
    write_report(json, asdict(result))
    if plot is not None:
        from outrider_bench.studies.drafters.comparison_report import plot_comparison

        plot_comparison(result, plot)
    _fail_unless_exact(result)


def depth_sweep_command(
    target: TargetOption = None,
    drafter: DrafterOption = None,
    levels: Annotated[int, typer.Option(min=1, max=32, help="Draft chains of 1 to this many levels.")] = 8,
    questions: QuestionsOption = None,
    families: FamiliesOption = None,
    per_family: Annotated[
        int | None, typer.Option(min=1, help="Questions per family; default: 5, of --questions all of a category.")
    ] = None,
    repetitions: RepetitionsOption = 3,
    seed: OrderSeedOption = 1,
    max_new_tokens: LimitOption = 128,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Measure how acceptance and speed of one drafter's chains depend on their depth.

    1/n is what a chain reaches of which only the first token is ever accepted.
    """
    from outrider_bench.studies.drafters.comparison import compare_drafters, drafter_entry, drafter_label
    from outrider_bench.studies.drafters.comparison_report import sweep_table

    directory = target_of(target)
    named = drafter_for(directory, drafter)
    label = drafter_label(named)
    source = source_of(directory, questions, families)
    few = 5 if per_family is None and questions is None else per_family
    entries = {str(n): drafter_entry(directory, named, TreeShape.chain(n)) for n in range(1, levels + 1)}
    with progress_line() as step:
        result = compare_drafters(directory, source, entries, (), few, max_new_tokens, repetitions, seed, step)
    show(sweep_table(label, result))
    write_report(json, {"drafter": label, **asdict(result)})
    if plot is not None:
        from outrider_bench.studies.drafters.comparison_report import plot_depth_sweep

        plot_depth_sweep(label, result, plot)
    _fail_unless_exact(result)


def edge_weights_command(
    target: TargetOption = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", help=f"Embedded name or directory; repeatable; default: {', '.join(PAIR)}."),
    ] = None,
    weights: Annotated[
        list[str] | None, typer.Option("--weights", help="float32, bfloat16, int8 or int4; repeatable; default: all.")
    ] = None,
    per_family: PerFamilyOption = 20,
    with_products: Annotated[
        bool,
        typer.Option("--products", help="Also time single matrix products, up to the sizes of an 8B target (2 GB)."),
    ] = False,
    parts: Annotated[
        bool,
        typer.Option(
            "--parts", help="Time drafts by their parts in place of answers: attention, MLP, head, choice, the rest."
        ),
    ] = False,
    json: JsonOption = None,
) -> None:
    """Measure bytes, draft time and mean acceptance length of edge bundles, by type of weights."""
    from outrider_bench.studies.drafters.edge_parts import edge_parts, edge_parts_table
    from outrider_bench.studies.drafters.edge_products import products, products_table
    from outrider_bench.studies.drafters.edge_weights import edge_weights, edge_weights_table
    from outrider_drafters.quantization.quantize import Weights

    directory = target_of(target)
    drafters = {name: drafter_source(name) for name in drafter or PAIR}
    kinds = weights or list(get_args(Weights))
    if parts:
        timed = edge_parts(directory, drafters, kinds)
        show(edge_parts_table(timed))
        write_report(json, {"edge_parts": [asdict(result) for result in timed]})
        return
    with progress_line() as step:
        results = asyncio.run(edge_weights(directory, drafters, kinds, per_family, step))
    multiplied = list(products(kinds)) if with_products else []
    show(edge_weights_table(results))
    if multiplied:
        show(products_table(multiplied))
    report = {"edge_weights": [asdict(result) for result in results], "products": [asdict(p) for p in multiplied]}
    write_report(json, report)
    if any(result.not_exact for result in results):
        raise typer.Exit(1)


def routing_command(
    target: TargetOption = None,
    heads: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Two drafters for one target; default: the embedded heads for math and for chat."),
    ] = None,
    gate: Annotated[
        float, typer.Option(help="Probability of the first head's draft from which the second head is skipped.")
    ] = 0.8,
    per_family: PerFamilyOption = 10,
    seed: OrderSeedOption = 1,
    max_new_tokens: LimitOption = 128,
    json: JsonOption = None,
) -> None:
    """Measure two heads, each alone and routed: acceptance, and what the second head costs."""
    from outrider_bench.studies.drafters.routing import (
        compare_variants,
        routing_cost_table,
        routing_tau_table,
    )

    directory = target_of(target)
    names = heads or DOMAIN_HEADS
    with progress_line() as step:
        results = asyncio.run(compare_variants(directory, names, gate, per_family, max_new_tokens, seed, step))
    show(routing_tau_table(results), routing_cost_table(results))
    write_report(
        json, {"heads": names, "gate": gate, "ways": {name: asdict(result) for name, result in results.items()}}
    )
    if any(result.mismatches for result in results.values()):
        raise typer.Exit(1)


def _fail_unless_exact(result: Comparison) -> None:
    if any(drafter.mismatches for drafter in result.drafters.values()):
        raise typer.Exit(1)
