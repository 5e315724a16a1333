"""Clients that write answer after answer while replicas come and go; every answer is compared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import typer

from outrider_bench.core.progress import Step
from outrider_bench.core.prompts import Question, questions
from outrider_bench.core.reference_answers import generated
from outrider_bench.harness.study import WholeStudy
from outrider_bench.studies.options import RayOptions
from outrider_bench.studies.serving.ray_process import RayProcess
from outrider_client.async_client import AsyncClient
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Committed, LinkChanged, RolledBack, Unverified
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import EMBEDDED, target_dir

_WAIT_FOR_LINK_S = 120.0  # of a client whose replica is gone


@dataclass(slots=True)
class RayCounters:
    """Counters of all clients together; `differing` answers are not the target's own."""

    answers: int = 0
    differing: int = 0
    tokens: int = 0
    lost_links: int = 0
    rolled_back: int = 0


@dataclass(slots=True)
class RayResult(RayCounters):
    clients: int = 0
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class RayReport:
    ray: RayResult


class RayStudy(WholeStudy[RayOptions, RayReport]):
    async def measure(self, step: Step) -> RayReport:
        options = self.options
        models = LocalModels.load(ClientConfig(target=EMBEDDED))
        asked = questions(models, 2)
        expected = generated(target_dir(), asked, options.max_new_tokens)
        replicas = ["--replicas", str(options.replicas), "--cpus", "0.5"]
        with RayProcess(["--target", EMBEDDED, *replicas, "--no-edge-bundle"]) as ray:
            typer.echo(f"{options.replicas} replicas on {ray.address}: processes {ray.replicas()}")
            config = ClientConfig(server=ray.address, wait_for_link_s=_WAIT_FOR_LINK_S)
            load = RayLoad(config, models, asked, expected)
            faults = partial(inject_faults, ray, options.replicas, options.kill, options.update)
            counters = await load.run(options.clients, faults)
        return RayReport(RayResult(**asdict(counters), clients=options.clients, replicas=options.replicas))

    @staticmethod
    def notes(report: RayReport) -> list[str]:
        found = report.ray
        return [
            f"{found.clients} clients wrote {found.answers} answers, {found.tokens} tokens; "
            f"links lost {found.lost_links} times, {found.rolled_back} tokens rolled back; "
            f"answers that differ from generate's: {found.differing}"
        ]

    @staticmethod
    def failures(report: RayReport) -> list[str]:
        return [f"{report.ray.differing} answers differ from generate's"] if report.ray.differing else []


class RayLoad:
    """Load on the service in `config`; `expected` are the target's own answers to `asked`."""

    def __init__(
        self,
        config: ClientConfig,
        models: LocalModels,
        asked: Sequence[Question],
        expected: Sequence[tuple[int, ...]],
    ) -> None:
        self.counters = RayCounters()
        self._config = config
        self._models = models
        self._work = list(zip(asked, expected, strict=True))
        self._is_over = False
        self._answered = asyncio.Event()

    async def run(
        self, num_clients: int, meanwhile: Callable[[], Coroutine[Any, Any, None]]
    ) -> RayCounters:  # Any: asyncio's
        """Run so many clients while `meanwhile` runs, then let each finish its answer."""
        async with asyncio.TaskGroup() as group:
            for number in range(num_clients):
                group.create_task(self._write(number))
            try:
                await self.answers(num_clients)  # everybody is there
                await meanwhile()
                await self.answers(self.counters.answers + num_clients)
            finally:
                self._is_over = True
        return self.counters

    async def answers(self, count: int) -> None:
        """Wait until so many answers have been written."""
        while self.counters.answers < count:
            # Without an await between check and wait, no answer can be missed.
            self._answered.clear()
            await self._answered.wait()

    async def _write(self, number: int) -> None:
        async with AsyncClient(self._config, models=self._models) as client:
            while not self._is_over:
                question, expected = self._work[number % len(self._work)]
                tokens = await self._answer(client, question, len(expected))
                self.counters.answers += 1
                self.counters.differing += tokens != expected
                self.counters.tokens += len(tokens)
                self._answered.set()
                number += 1

    async def _answer(self, client: AsyncClient, question: Question, limit: int) -> tuple[int, ...]:
        tokens: list[int] = []
        async with aclosing(client.generate(question.prompt, max_new_tokens=limit)) as events:
            async for event in events:
                match event:
                    case Committed(tokens=new) | Unverified(tokens=new):
                        tokens += new
                    case RolledBack(count=count):
                        del tokens[len(tokens) - count :]
                        self.counters.rolled_back += count
                    case LinkChanged(state=LinkState.OFFLINE):
                        self.counters.lost_links += 1
        return tuple(tokens)


async def inject_faults(ray: RayProcess, num_replicas: int, kill: bool, update: bool) -> None:
    """Kill and replace replicas; each fault ends when there are as many replicas as before."""
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
    """Return the seconds until there are so many replicas and none of `gone` is left."""
    started = time.monotonic()
    while len(now := ray.replicas()) < num_replicas or gone & set(now):  # noqa: ASYNC110 # processes set no event
        await asyncio.sleep(0.1)
    return time.monotonic() - started
