"""The command `outrider-bench`: parses, runs, prints. Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from outrider_bench.comparison_commands import depth_sweep_command, drafters_command
from outrider_bench.pair_commands import eval_command, exact_command, overhead_command, recover_command
from outrider_bench.report import write_report
from outrider_bench.trace import TraceRequest, trace
from outrider_drafters.frozen import resolve_dir
from outrider_drafters.shape import TreeShape
from outrider_proto.errors import LinkError, OutriderError, Refusal, UsageError, Violation
from outrider_proto.frames import Sampling

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.command("eval")(eval_command)
app.command("exact")(exact_command)
app.command("overhead")(overhead_command)
app.command("recover")(recover_command)
app.command("drafters")(drafters_command)
app.command("depth-sweep")(depth_sweep_command)
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")]


@app.callback()
def _bench() -> None:
    """Measurements that need both sides."""


@app.command("trace")
def trace_command(
    target: Annotated[str, typer.Option(help="Directory or hub name of the target.")],
    drafter: Annotated[str, typer.Option(help="Directory or hub name of the drafter.")],
    prompt_ids: Annotated[str, typer.Option(help="Token ids, separated by commas.")],
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    breadth: Annotated[int, typer.Option(help="Nodes expanded a level, and children each.")] = 4,
    levels: Annotated[int, typer.Option(help="Drafted levels.")] = 5,
    budget: Annotated[int, typer.Option(help="Drafted nodes, the root not counted.")] = 16,
    acceptance: Annotated[str, typer.Option(help="greedy or sampling.")] = "greedy",
    temperature: Annotated[float, typer.Option(help="For sampling.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="For sampling; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="For sampling; 1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="For sampling.")] = 0,
    baseline: Annotated[bool, typer.Option("--baseline", help="Run the target alone too, and compare.")] = False,
    json: JsonOption = Path("-"),
) -> None:
    """One answer without network, cycle by cycle."""
    request = TraceRequest(
        target=resolve_dir(target),
        drafter=drafter,
        prompt_ids=_token_ids(prompt_ids),
        max_new_tokens=max_new_tokens,
        shape=TreeShape(breadth, levels, budget),
        sampling=_sampling(acceptance, temperature, top_k, top_p, seed),
        baseline=baseline,
    )
    report = asyncio.run(trace(request))
    write_report(json, report)
    if baseline and not report["matches_baseline"]:
        raise typer.Exit(1)


def main() -> None:
    """Entry point: every deliberate error is one line and an exit code."""
    try:
        app()
    except OutriderError as error:
        typer.secho(f"outrider-bench: {error}", fg="red", err=True)
        raise SystemExit(_exit_code(error)) from None


def _exit_code(error: OutriderError) -> int:
    match error:
        case Refusal():
            return 3
        case LinkError():
            return 4
        case _:
            return 2


def _token_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"prompt-ids={text!r}: need token ids separated by commas") from None


def _sampling(acceptance: str, temperature: float, top_k: int, top_p: float, seed: int) -> Sampling:
    match acceptance:
        case "greedy":
            return Sampling()
        case "sampling":
            try:
                return Sampling(temperature, top_k, top_p, seed)
            except Violation as error:
                raise UsageError(error.message) from None
        case _:
            raise UsageError(f"acceptance={acceptance!r}: need greedy or sampling")
