"""The command `outrider-bench trace`: its options, and the request they make."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider_bench.core.report import write_report
from outrider_bench.studies.drafters.trace import TraceRequest, trace
from outrider_client.cli.options import tree_plan
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.errors import UsageError, Violation
from outrider_proto.frames import Sampling

_TREE = TreeShape()
_RULE = Sampling()


def trace_command(
    target: Annotated[str, typer.Option(help="Directory or hub name of the target.")],
    drafter: Annotated[str, typer.Option(help="Directory or hub name of the drafter, or lookup; with ,KEY=VALUE ...")],
    prompt_ids: Annotated[str, typer.Option(help="Token ids, separated by commas.")],
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    breadth: Annotated[
        int | None, typer.Option(help=f"Nodes expanded a level, and children each; {_TREE.breadth}.")
    ] = None,
    levels: Annotated[int | None, typer.Option(help=f"Drafted levels; {_TREE.levels}.")] = None,
    budget: Annotated[int | None, typer.Option(help=f"Drafted nodes, the root not counted; {_TREE.budget}.")] = None,
    min_probability: Annotated[float | None, typer.Option(help="Draft only paths at least so likely; 0.")] = None,
    choices: Annotated[
        str | None,
        typer.Option(help="Fixed tree: a shipped set's name or a JSON list of paths of child ranks."),
    ] = None,
    tli: Annotated[int | None, typer.Option(help="Target layers that MoA runs on the client.")] = None,
    acceptance: Annotated[str, typer.Option(help="greedy, sampling, or typical, which is lossy.")] = "greedy",
    temperature: Annotated[float, typer.Option(help="For sampling and typical.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="For sampling and typical; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="For sampling and typical; 1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="For sampling.")] = 0,
    epsilon: Annotated[float, typer.Option(help="For typical: probability always enough.")] = _RULE.epsilon,
    alpha: Annotated[float, typer.Option(help="For typical: share of exp(-entropy) enough.")] = _RULE.alpha,
    baseline: Annotated[bool, typer.Option("--baseline", help="Run the target alone too, and compare.")] = False,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")] = (
        Path("-")
    ),
) -> None:
    """One answer without network, cycle by cycle. With neither limits nor choices the drafter's own trees."""
    request = TraceRequest(
        target=resolve_dir(target),
        drafter=_source(drafter, tli),
        prompt_ids=_token_ids(prompt_ids),
        max_new_tokens=max_new_tokens,
        plan=tree_plan(choices, breadth=breadth, levels=levels, budget=budget, min_probability=min_probability),
        sampling=_sampling(acceptance, temperature, top_k, top_p, seed=seed, epsilon=epsilon, alpha=alpha),
        baseline=baseline,
    )
    report = asyncio.run(trace(request))
    write_report(json, report)
    lossless = request.sampling.acceptance == "exact"
    if baseline and lossless and not report["matches_baseline"]:
        raise typer.Exit(1)


def _source(drafter: str, tli: int | None) -> DrafterSource:
    source = DrafterSource.parse(drafter)
    if tli is None:
        return source
    if source.options.tli not in (None, tli):
        raise UsageError(f"tli={tli}, but drafter {drafter} says {source.options.tli}: give one")
    if tli < 0:
        raise UsageError(f"tli={tli}: need 0 or more")
    return replace(source, options=replace(source.options, tli=tli))


def _token_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"prompt-ids={text!r}: need token ids separated by commas") from None


def _sampling(acceptance: str, temperature: float, top_k: int, top_p: float, **more: Any) -> Sampling:  # Sampling's own
    try:
        match acceptance:
            case "greedy":
                return Sampling()
            case "sampling":
                return Sampling(temperature, top_k, top_p, **more)
            case "typical":
                return Sampling(temperature, top_k, top_p, acceptance="typical", **more)
    except Violation as error:
        raise UsageError(error.message) from None
    raise UsageError(f"acceptance={acceptance!r}: need greedy, sampling or typical")
