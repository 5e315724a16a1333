"""The commands on the embedded pair, or on another target and its drafters whose corpus is ours."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outrider_bench.core.cores import own_cores
from outrider_bench.core.in_process_pair import in_process, papers_loop
from outrider_bench.core.progress import Counter, Step, progress_line
from outrider_bench.core.prompts import Question, questions
from outrider_bench.core.report import write_report
from outrider_bench.core.server_process import ServerProcess
from outrider_bench.core.tables import acceptance_table, outage_table, overhead_table, recovery_table, scores_table
from outrider_bench.studies.pair.evaluation import Plan, evaluate
from outrider_bench.studies.pair.exact import exactness, generated
from outrider_bench.studies.pair.overhead import cycle_times, medians, ping_ms
from outrider_bench.studies.pair.recover import Recovery, recoveries
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.core.embedded import DRAFTERS, PAIR, drafter_dir, target_dir
from outrider_models.corpus import FAMILIES
from outrider_proto.errors import UsageError

TargetOption = Annotated[Path | None, typer.Option(help="Directory of the target; default: the embedded one.")]
DraftersOption = Annotated[
    list[str] | None,
    typer.Option("--drafter", help="Embedded drafter or directory, repeatable; default: moa, eagle2."),
]
PromptsOption = Annotated[int, typer.Option("--prompts", min=1, help="Held-out prompts, spread over the families.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")]
console = Console(stderr=True)


def eval_command(
    target: TargetOption = None,
    drafter: DraftersOption = None,
    per_family: Annotated[int, typer.Option(min=1, help="Questions of each family but code.")] = 100,
    code: Annotated[int, typer.Option(min=1, help="Questions of the code family.")] = 164,
    tau_per_family: Annotated[int, typer.Option(min=1, help="Questions a family for the acceptance lengths.")] = 30,
    json: JsonOption = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the results here (PNG).")] = None,
) -> None:
    """Scores of the target, acceptance of the drafters, code when the link dies."""
    plan = Plan(target or target_dir(), _drafters(drafter), per_family, code, tau_per_family)
    with progress_line() as step:
        evaluation = asyncio.run(evaluate(plan, step))
    for table in (scores_table, acceptance_table, outage_table):
        console.print(table(evaluation))
    write_report(json, evaluation.as_dict())
    if plot is not None:
        from outrider_bench.studies.pair.plots import plot_evaluation

        plot_evaluation(evaluation, plot)
    if any(a.mismatches for result in evaluation.drafters.values() for a in result.acceptance.values()):
        raise typer.Exit(1)


def exact_command(
    target: TargetOption = None,
    drafter: DraftersOption = None,
    prompts: PromptsOption = 200,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 96,
    json: JsonOption = None,
) -> None:
    """Answers in process and over gRPC, token for token against transformers' generate in float32."""
    with progress_line() as step:
        report = asyncio.run(_exact(target or target_dir(), _drafters(drafter), prompts, max_new_tokens, step))
    for name, result in report.items():
        console.print(f"{name}: {prompts - len(result)} of {prompts} identical")
    write_report(json, {"prompts": prompts, "differing": report})
    if any(report.values()):
        raise typer.Exit(1)


def overhead_command(
    target: TargetOption = None, drafter: DraftersOption = None, prompts: PromptsOption = 30, json: JsonOption = None
) -> None:
    """Where the time of a cycle goes over gRPC on loopback, medians."""
    with progress_line() as step:
        report = asyncio.run(_overhead(target or target_dir(), _drafters(drafter), prompts, step))
    console.print(overhead_table(report))
    write_report(json, report)


def recover_command(
    target: TargetOption = None,
    drafter: DraftersOption = None,
    prompts: PromptsOption = 20,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 1,
    json: JsonOption = None,
) -> None:
    """Kill the server in mid-answer, restart it, resume with verification: the undisturbed answer?"""
    name, directory = next(iter(_drafters(drafter).items()))
    with progress_line() as step:
        report = asyncio.run(_recover(target or target_dir(), directory, prompts, seed, step))
    console.print(recovery_table(report))
    good = sum(recovery.identical for recovery in report)
    console.print(f"{name}: {good} of {len(report)} identical to the undisturbed answer")
    write_report(json, {"recoveries": [asdict(recovery) for recovery in report]})
    if good < len(report):
        raise typer.Exit(1)


async def _exact(
    target: Path, drafters: dict[str, Path], count: int, limit: int, step: Step
) -> dict[str, tuple[int, ...]]:
    """By way of asking, the numbers of the prompts whose answers differ."""
    asked = _some(target, count)
    expected = generated(target, asked, limit, Counter(step, "transformers", count))
    report = {}
    for name, directory in drafters.items():
        config = ClientConfig(target=target, drafter=directory)
        counter = Counter(step, f"{name} in process", count)
        async with in_process(target, config) as pair, pair.client() as client:
            report[f"{name} in process"] = (await exactness(client, asked, expected, limit, counter)).differing
        counter = Counter(step, f"{name} over gRPC", count)
        with ServerProcess(_server_options(target, directory)) as server:
            config = ClientConfig(server=server.address, target=target, drafter=directory)
            async with AsyncClient(config) as client:
                report[f"{name} over gRPC"] = (await exactness(client, asked, expected, limit, counter)).differing
    return report


async def _overhead(target: Path, drafters: dict[str, Path], count: int, step: Step) -> dict[str, dict[str, float]]:
    asked = _some(target, count)
    report = {}
    for name, directory in drafters.items():
        with ServerProcess(_server_options(target, directory)) as server:
            config = papers_loop(server=server.address, target=target, drafter=directory)
            models = LocalModels.load(config)
            with own_cores(server.pid) as pinned:
                if not pinned:
                    console.print("server and client share their cores: this machine gives them none of their own")
                times = await cycle_times(config, models, asked, Counter(step, name, count))
                report[name] = medians(times) | {"ping": await ping_ms(server.address, models)}
    return report


async def _recover(target: Path, drafter: Path, count: int, seed: int, step: Step) -> list[Recovery]:
    asked = _some(target, count)
    with ServerProcess(_server_options(target, drafter)) as server:
        config = ClientConfig(
            server=server.address, target=target, drafter=drafter, on_reconnect="verify", wait_for_link_s=120.0
        )
        models = LocalModels.load(config)
        async with AsyncClient(config, models=models) as client:
            expected = [(await client.complete(question.prompt)).token_ids for question in asked]
        counter = Counter(step, "killed and restarted", count)
        return await recoveries(server, config, models, asked, expected, seed, lambda recovery: counter())


def _some(target: Path, count: int) -> list[Question]:
    """`count` held-out questions, the families in turn."""
    models = LocalModels.load(ClientConfig(target=target, drafter=NO_DRAFTER))
    asked = questions(models, -(-count // len(FAMILIES)))
    each = len(asked) // len(FAMILIES)
    return [asked[family * each + i] for i in range(each) for family in range(len(FAMILIES))][:count]


def _drafters(names: list[str] | None) -> dict[str, Path]:
    """By name: embedded ones, or directories."""
    chosen = names or list(PAIR)
    found = {name: drafter_dir(name) if name in DRAFTERS else resolve_dir(name) for name in chosen}
    for name, directory in found.items():
        if not (directory / "config.json").is_file():
            raise UsageError(f"drafter {name}: no config.json in {directory}")
    return found


def _server_options(target: Path, drafter: Path) -> list[str]:
    return ["--target", str(target), "--drafter", str(drafter)]
