"""The runs of `outrider-bench load`: each number of clients in turn, the controls, the soak."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from outrider_bench.core.progress import Step
from outrider_bench.load.clients.texts import LoadText
from outrider_bench.load.clients.worker import Assignment
from outrider_bench.load.clients.worker_pool import worker_pool
from outrider_bench.load.control import BatchOrder, GenerateControl, GenerateResult
from outrider_bench.load.measures.process_use import CoreShares
from outrider_bench.load.metrics import LoadRun, ResourceUse, load_run
from outrider_bench.load.plan import NO_LINK, LoadPlan
from outrider_bench.load.server_under_test import ServerUnderTest, server_under_test
from outrider_bench.load.soak import SoakPlan, SoakResult, soak

WARM_UP_S = 1.5  # connections are made, and the first prompts read
_CONTROL_PROMPTS = 16
_UNCACHED_PROMPTS = 4


@dataclass(frozen=True, slots=True)
class CountRuns:
    """The runs of one number of clients: drafting, and as a control without drafts."""

    drafting: LoadRun
    stream: LoadRun | None


@dataclass(frozen=True, slots=True)
class Baselines:
    """What the clients' speed is held against."""

    controls: tuple[GenerateResult, ...]


async def measure_count(
    plan: LoadPlan,
    count: int,
    server: ServerUnderTest,
    texts: Path,
    seconds: float | None,
    shares: CoreShares,
    step: Step,
    *,
    control: bool,
) -> CountRuns:
    """Load the server with `count` clients; as a control also with as many in mode `stream`."""
    number, stream = plan.clients.index(count), None
    step(f"{count} clients", number, len(plan.clients))
    assignment = plan.assignment(count, server.address, texts, shares.clients)
    drafting = await run_load(server, assignment, seconds, plan.workers)
    if control and plan.mode != "stream":
        step(f"{count} clients that do not draft", number, len(plan.clients))
        stream = await run_load(server, replace(assignment, mode="stream"), seconds, plan.workers)
    return CountRuns(drafting, stream)


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


def title_of(plan: Mapping[str, Any]) -> str:  # Any: JSON
    """Describe in one line what a report's plan measures."""
    rate, target, drafter = plan["habits"]["rate"], Path(plan["target"]), Path(plan["drafter"])
    loop = f"open loop, {rate:g} questions a second" if rate else "closed loop"
    drafts = f"replayed drafts of tau {plan['tau']:g}" if plan["kind"] == "replay" else f"real clients, {drafter.name}"
    link = plan["profile"] or NO_LINK
    return f"{target.name}, {loop}, think time {plan['habits']['think_s']:g} s, {drafts}, link {link}"


def plan_as_dict(plan: LoadPlan, texts: Sequence[LoadText], shares: CoreShares) -> dict[str, Any]:  # Any: JSON
    """Return the settings for a report."""
    return {
        "plan": asdict(plan) | {"target": str(plan.target), "mix": plan.mix.settings},
        "texts": len(texts),
        "cores": shares,
        "link_engine": "proxy" if plan.profile else NO_LINK,
    }


def _spread(texts: Sequence[LoadText], count: int) -> list[LoadText]:
    count = min(count, len(texts))
    return [texts[number * len(texts) // count] for number in range(count)]
