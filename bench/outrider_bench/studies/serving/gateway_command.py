"""The command `outrider-bench gateway`."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outrider_bench.core.progress import Counter, Step, progress_line
from outrider_bench.core.prompts import questions
from outrider_bench.core.report import write_report
from outrider_bench.core.server_process import ServerProcess
from outrider_bench.core.tables import table
from outrider_bench.studies.serving.gateway_overhead import figures, pairs
from outrider_bench.studies.serving.gateway_process import GatewayProcess, cold_start_s
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_models.corpus import FAMILIES

console = Console(stderr=True)


def gateway_command(
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts, spread over the families.")] = 60,
    mode: Annotated[list[str] | None, typer.Option(help="Repeatable; stream and proactive.")] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 64,
    cold_starts: Annotated[int, typer.Option(min=0, help="Gateways to start from nothing.")] = 5,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")] = None,
) -> None:
    """What the gateway adds to a token of the embedded pair, and how soon after its start the first one comes."""
    modes = mode or ["stream", "proactive"]
    with progress_line() as step:
        report = asyncio.run(_measure(modes, prompts, max_tokens, cold_starts, step))
    rows = [[name, *(f"{of_mode[name]:.3f}" for of_mode in report.values())] for name in next(iter(report.values()))]
    console.print(table("through the gateway, medians", ("", *report), rows))
    write_report(json, {"prompts": prompts, "max_tokens": max_tokens, "modes": report})


async def _measure(
    modes: list[str], num_prompts: int, max_tokens: int, cold_starts: int, step: Step
) -> Mapping[str, dict[str, float]]:
    report: dict[str, dict[str, float]] = {}
    with ServerProcess(["--target", str(target_dir()), "--drafter", str(drafter_dir("moa"))]) as server:
        models = LocalModels.load(ClientConfig())
        asked = questions(models, -(-num_prompts // len(FAMILIES)))[:num_prompts]
        with GatewayProcess(server.address) as gateway:
            async with AsyncClient(ClientConfig(server.address), models=models) as client:
                for mode in modes:
                    counter = Counter(step, mode, num_prompts)
                    prompts = [question.prompt for question in asked]
                    timed = await pairs(client, gateway.port, prompts, mode, max_tokens, counter)
                    report[mode] = figures(timed)
        starts = _cold_starts(server.address, cold_starts, step)
    return {mode: told | starts for mode, told in report.items()}


def _cold_starts(server: str, count: int, step: Step) -> dict[str, float]:
    """Nothing for none."""
    counter = Counter(step, "cold starts", count)
    taken = []
    for _ in range(count):
        taken.append(cold_start_s(server))
        counter()
    return {"cold_start_s": statistics.median(taken)} if taken else {}
