"""The runs of `outrider-bench load`: each number of clients in turn, the controls, the limits, the soak."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider_bench.core.progress import Step
from outrider_bench.load.clients.texts import LoadText
from outrider_bench.load.clients.worker import Assignment
from outrider_bench.load.clients.worker_pool import hog_process, worker_pool
from outrider_bench.load.control import BatchOrder, GenerateControl, GenerateResult
from outrider_bench.load.hardware_limit import HardwareLimit, hardware_limits
from outrider_bench.load.measures.process_use import CoreShares, on_cores
from outrider_bench.load.metrics import HogRun, LoadRun, ResourceUse, load_run
from outrider_bench.load.plan import NO_LINK, LoadPlan
from outrider_bench.load.server_under_test import ServerUnderTest, server_under_test
from outrider_bench.load.soak import SoakPlan, SoakResult, soak
from outrider_server.engine.target import Target

WARM_UP_S = 1.5  # connections are made, and the first prompts read
_CONTROL_PROMPTS = 16
_UNCACHED_PROMPTS = 4


@dataclass(frozen=True, slots=True)
class LoadRuns:
    """The runs of one server, by number of clients; `streams`: of clients that do not draft; `beside`: beside hogs."""

    drafting: list[LoadRun] = field(default_factory=list)
    streams: list[LoadRun] = field(default_factory=list)
    beside: list[HogRun] = field(default_factory=list)

    @property
    def all(self) -> list[LoadRun]:
        return [*self.drafting, *self.streams, *(hog.run for hog in self.beside)]


async def measure_runs(
    plan: LoadPlan, texts: Path, seconds: float | None, shares: CoreShares, step: Step, *, control: bool
) -> LoadRuns:
    """Load one server with each number of clients in turn; as a control also with as many in mode `stream`."""
    done = LoadRuns()
    async with server_under_test(plan.server, plan.serve_options, shares.server) as server:
        for number, count in enumerate(plan.clients):
            step(f"{count} clients", number, len(plan.clients))
            assignment = plan.assignment(count, server.address, texts, shares.clients)
            done.drafting.append(await run_load(server, assignment, seconds, plan.workers))
            if control and plan.mode != "stream":
                step(f"{count} clients that do not draft", number, len(plan.clients))
                plain = replace(assignment, mode="stream")
                done.streams.append(await run_load(server, plain, seconds, plan.workers))
            for kind in plan.hogs:
                step(f"{count} clients beside {kind}", number, len(plan.clients))
                async with hog_process(plan.hog(kind, server.address, texts, shares.clients)) as hog:
                    run = await run_load(server, assignment, seconds, plan.workers)
                    hog.end_input()
                    got = await hog.receive("result")
                done.beside.append(HogRun(kind, run, got["verdicts"], got["refusals"]))
    return done


async def run_load(server: ServerUnderTest, assignment: Assignment, seconds: float | None, num_workers: int) -> LoadRun:
    """Count for `seconds`, or until all clients have made their requests. Raises UsageError."""
    numbers = tuple(range(assignment.num_clients))
    async with worker_pool(replace(assignment, server=server.address, numbers=numbers), num_workers) as pool:
        begin = time.monotonic() + (0.0 if seconds is None else WARM_UP_S)
        pool.begin(begin, None if seconds is None else begin + seconds)
        await asyncio.sleep(begin - time.monotonic())
        before = server.use, pool.use
        passes_before = await server.passes()
        if seconds is None:
            counters = await pool.client_counters()
            after = server.use, pool.use
        else:
            await asyncio.sleep(begin + seconds - time.monotonic())
            # Resource use is read before the counters: waiting for these, the processes go on.
            after = server.use, pool.use
            counters = await pool.client_counters()
        counted_s = time.monotonic() - begin if seconds is None else seconds
        passes = (await server.passes()).since(passes_before)
    server_use, clients_use = (ResourceUse.between(first, last) for first, last in zip(before, after, strict=True))
    return load_run(counters, counted_s, server_use, clients_use, passes.as_dict())


async def run_soak(
    plan: LoadPlan, how: SoakPlan, texts: Path, shares: CoreShares, log: Callable[[str], None]
) -> SoakResult:
    """Soak one server; a line on the state goes to `log` every minute."""
    async with server_under_test(plan.server, plan.serve_options, shares.server) as server:
        assignment = plan.assignment(plan.clients[0], server.address, texts, shares.clients)
        return await soak(how, server, assignment, plan.workers, log)


def measure_controls(plan: LoadPlan, texts: Sequence[LoadText], shares: CoreShares, step: Step) -> list[GenerateResult]:
    """Run transformers' generate over prompts from all of the mix: one by one, and in batches as large as each run."""
    generate, limit = GenerateControl(plan.target, plan.dtype, plan.device, shares.server), plan.mix.limit
    orders: tuple[BatchOrder, ...] = ("drawn", "sorted")
    return [
        generate.measure(_spread(texts, _CONTROL_PROMPTS), limit, step, use_cache=True),
        generate.measure(_spread(texts, _UNCACHED_PROMPTS), limit, step, use_cache=False),
        *(
            generate.measure_batches(texts, limit, step, count, order, plan.seed)
            for count in plan.clients
            if count > 1
            for order in orders
        ),
    ]


def measure_limits(plan: LoadPlan, texts: Sequence[LoadText], shares: CoreShares) -> list[HardwareLimit]:
    context = sum(len(text.prompt) for text in texts) // len(texts)
    with on_cores(shares.server):
        return hardware_limits(
            Target.load(str(plan.target), plan.dtype, plan.device), plan.clients, plan.shape.budget + 1, context
        )


def title_of(plan: LoadPlan) -> str:
    loop = f"open loop, {plan.habits.rate:g} questions a second" if plan.habits.rate else "closed loop"
    real = f"real clients, {Path(plan.drafter).name}"
    drafts = f"replayed drafts of tau {plan.tau:g}" if plan.kind == "replay" else real
    return f"{plan.target.name}, {loop}, think time {plan.habits.think_s:g} s, {drafts}, link {plan.profile or NO_LINK}"


def plan_as_dict(plan: LoadPlan, texts: Sequence[LoadText], shares: CoreShares) -> dict[str, Any]:  # Any: JSON
    """Return the settings for a report."""
    return {
        "plan": asdict(plan) | {"target": str(plan.target), "mix": plan.mix.settings},
        "texts": len(texts),
        "cores": asdict(shares),
        "link_engine": "proxy" if plan.profile else NO_LINK,
    }


def _spread(texts: Sequence[LoadText], count: int) -> list[LoadText]:
    count = min(count, len(texts))
    return [texts[number * len(texts) // count] for number in range(count)]
