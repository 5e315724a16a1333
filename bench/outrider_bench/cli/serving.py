"""Commands about serving: gateway, privacy, ray."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from outrider_bench.cli.options import JsonOption, LimitOption, PerFamilyOption, TargetOption, target_of
from outrider_bench.core.progress import progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import OVER_PROMPTS, ci95_cells, show, table
from outrider_models.core.embedded import EMBEDDED, PAIR, target_dir

_WAIT_FOR_LINK_S = 120.0  # of a client whose replica is gone
PRIVACY_DRAFTERS = (*PAIR, "independent")


def gateway_command(
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts, spread over the families.")] = 60,
    mode: Annotated[
        list[str] | None, typer.Option(help="Mode of the client; repeatable; default: stream and proactive.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 64,
    cold_starts: Annotated[int, typer.Option(min=0, help="Gateways to start for the time to a first token.")] = 5,
    json: JsonOption = None,
) -> None:
    """Measure what the gateway adds to a token of the embedded pair, and its time from start to first token."""
    from outrider_bench.studies.serving.gateway_overhead import measure_gateway

    modes = mode or ["stream", "proactive"]
    with progress_line() as step:
        report = asyncio.run(measure_gateway(modes, prompts, max_tokens, cold_starts, step))
    cells = [ci95_cells(of_mode, 3) for of_mode in report.values()]
    rows = [[name, *(of_mode[name] for of_mode in cells)] for name in cells[0]]
    show(table("through the gateway, medians", ("", *report), rows, caption=OVER_PROMPTS))
    write_report(json, {"prompts": prompts, "max_tokens": max_tokens, "modes": report})


def privacy_command(
    target: TargetOption = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(help=f"Embedded name or directory; repeatable; default: {', '.join(PRIVACY_DRAFTERS)}."),
    ] = None,
    per_family: PerFamilyOption = 100,
    max_new_tokens: LimitOption = 128,
    json: JsonOption = None,
) -> None:
    """Measure the share of right answers that need a private fact, for every way of keeping it private."""
    from outrider_bench.studies.serving.privacy import measure_privacy, privacy_tables

    names = drafter or list(PRIVACY_DRAFTERS)
    with progress_line() as step:
        measured = asyncio.run(measure_privacy(target_of(target), names, per_family, max_new_tokens, step))
    for name, result in measured.items():
        show(*privacy_tables(name, result))
    write_report(json, {"drafters": {name: asdict(result) for name, result in measured.items()}})


def ray_command(
    clients: Annotated[int, typer.Option(help="Clients that write at once.", min=1)] = 8,
    replicas: Annotated[int, typer.Option(help="Replicas of the service.", min=1)] = 2,
    kill: Annotated[bool, typer.Option(help="Kill a replica (SIGKILL) under load.")] = True,
    update: Annotated[bool, typer.Option(help="Replace all replicas under load.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens per answer.", min=1)] = 64,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report to this file; - for standard output.")
    ] = None,
) -> None:
    """Start the service on Ray, kill a replica under load, and compare every answer with `generate`'s."""
    from outrider_bench.core.prompts import questions
    from outrider_bench.core.reference_answers import generated
    from outrider_bench.studies.serving.ray_load import RayLoad, inject_faults
    from outrider_bench.studies.serving.ray_process import RayProcess
    from outrider_client.core.config import ClientConfig
    from outrider_client.models.local_models import LocalModels

    models = LocalModels.load(ClientConfig(target=EMBEDDED))
    asked = questions(models, 2)
    expected = generated(target_dir(), asked, max_new_tokens)
    with RayProcess(["--target", EMBEDDED, "--replicas", str(replicas), "--cpus", "0.5", "--no-edge-bundle"]) as ray:
        typer.echo(f"{replicas} replicas on {ray.address}: processes {ray.replicas()}")
        config = ClientConfig(server=ray.address, wait_for_link_s=_WAIT_FOR_LINK_S)
        load = RayLoad(config, models, asked, expected)
        counters = asyncio.run(load.run(clients, lambda: inject_faults(ray, replicas, kill, update)))
    typer.echo(
        f"{clients} clients wrote {counters.answers} answers, {counters.tokens} tokens; "
        f"links lost {counters.lost_links} times, {counters.rolled_back} tokens rolled back; "
        f"answers that differ from generate's: {counters.differing}"
    )
    write_report(json_file, {"ray": asdict(counters) | {"clients": clients, "replicas": replicas}})
    if counters.differing:
        raise SystemExit(1)
