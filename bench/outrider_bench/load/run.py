"""So many clients at once, for so long: one row of the table."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from outrider_bench.load.clients.crew import crew
from outrider_bench.load.clients.worker import Assignment
from outrider_bench.load.figures import LoadRun, Used, load_run
from outrider_bench.load.serving import Serving

WARM_UP_S = 1.5  # connections are made, and the first prompts read


async def run_load(serving: Serving, assignment: Assignment, seconds: float | None, num_workers: int) -> LoadRun:
    """Count for so many seconds; without, until all clients have asked what they are to ask. Raises UsageError."""
    numbers = tuple(range(assignment.num_clients))
    async with crew(replace(assignment, server=serving.address, numbers=numbers), num_workers) as workers:
        begin = time.monotonic() + (0.0 if seconds is None else WARM_UP_S)
        workers.begin(begin, None if seconds is None else begin + seconds)
        await asyncio.sleep(begin - time.monotonic())
        before = serving.use, workers.use
        passes_before = await serving.passes()
        if seconds is None:
            tallies = await workers.tallies()
            after = serving.use, workers.use
        else:
            await asyncio.sleep(begin + seconds - time.monotonic())
            after = serving.use, workers.use
            tallies = await workers.tallies()
        counted_s = time.monotonic() - begin if seconds is None else seconds
        passes = (await serving.passes()).since(passes_before)
    return load_run(
        tallies, counted_s, Used.between(before[0], after[0]), Used.between(before[1], after[1]), passes.as_dict()
    )
