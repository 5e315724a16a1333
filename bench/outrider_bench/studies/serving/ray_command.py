"""`outrider-bench ray`: a deployment on Ray, clients at work, a replica killed and all of them replaced."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from outrider_bench.core.prompts import questions
from outrider_bench.core.report import write_report
from outrider_bench.studies.pair.exact import generated
from outrider_bench.studies.serving.ray_load import RayLoad
from outrider_bench.studies.serving.ray_process import RayProcess
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import target_dir

_PATIENCE_S = 120.0  # of a client whose replica is gone


def ray_command(
    clients: Annotated[int, typer.Option(help="Clients that write at once.", min=1)] = 8,
    replicas: Annotated[int, typer.Option(help="Replicas of the service.", min=1)] = 2,
    kill: Annotated[bool, typer.Option(help="kill -9 a replica amid the load.")] = True,
    update: Annotated[bool, typer.Option(help="Replace all replicas amid the load.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of an answer.", min=1)] = 64,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write what happened here as well.")] = None,
) -> None:
    """Start the service on Ray, let clients work, kill a replica; compare every answer with `generate`'s."""
    models = LocalModels.load(ClientConfig())
    asked = questions(models, 2)
    expected = generated(target_dir(), asked, max_new_tokens)
    with RayProcess(["--replicas", str(replicas), "--cpus", "0.5", "--no-edge-bundle"]) as ray:
        typer.echo(f"{replicas} replicas on {ray.address}: processes {ray.replicas()}")
        config = ClientConfig(server=ray.address, wait_for_link_s=_PATIENCE_S)
        load = RayLoad(config, models, asked, expected)
        tally = asyncio.run(load.run(clients, lambda: disasters(ray, replicas, kill, update)))
    typer.echo(
        f"{clients} clients wrote {tally.answers} answers, {tally.tokens} tokens; links lost {tally.lost_links} times, "
        f"{tally.rolled_back} tokens taken back; answers that differ from generate's: {tally.differing}"
    )
    write_report(json_file, {"ray": asdict(tally) | {"clients": clients, "replicas": replicas}})
    if tally.differing:
        raise SystemExit(1)


async def disasters(ray: RayProcess, num_replicas: int, kill: bool, update: bool) -> None:
    """What happens to a deployment under load; each is over when there are as many replicas as before."""
    if kill:
        victim = ray.kill_replica()
        typer.echo(f"killed replica {victim}")
        seconds = await _replaced(ray, {victim}, num_replicas)
        typer.echo(f"after {seconds:.1f} s its place is taken: processes {ray.replicas()}")
    if update:
        before = set(ray.replicas())
        await asyncio.to_thread(ray.update)
        await _replaced(ray, before, num_replicas)
        typer.echo(f"all replaced: processes {ray.replicas()}")


async def _replaced(ray: RayProcess, gone: set[int], num_replicas: int) -> float:
    """Seconds until there are so many replicas and none of `gone` is among them."""
    started = time.monotonic()
    while len(now := ray.replicas()) < num_replicas or gone & set(now):  # noqa: ASYNC110 # processes set no event
        await asyncio.sleep(0.1)
    return time.monotonic() - started
