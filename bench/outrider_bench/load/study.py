"""The study behind `outrider-bench load`: each number of clients in turn, and the controls beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider_bench.core.processes import CoreShares
from outrider_bench.core.progress import Step
from outrider_bench.core.tables import ResultTable
from outrider_bench.harness.study import Measured, Study
from outrider_bench.load.clients.client import CountingWindow
from outrider_bench.load.clients.texts import LoadText, load_texts, read_texts
from outrider_bench.load.clients.worker import Assignment
from outrider_bench.load.clients.worker_pool import worker_pool
from outrider_bench.load.control import GenerateControl, GenerateResult, static_batches
from outrider_bench.load.metrics import LoadRun, ResourceUse, load_run
from outrider_bench.load.options import NO_LINK, LoadOptions
from outrider_bench.load.plan import LoadPlan
from outrider_bench.load.report import (
    control_table,
    latency_table,
    plot_load,
    throughput_table,
    title_of,
    use_table,
)
from outrider_bench.load.server_under_test import ServerUnderTest, difference, server_under_test

WARM_UP_S = 1.5  # connections are made, and the first prompts read
_CONTROL_PROMPTS = 16
_BASELINES = "baselines"


@dataclass(frozen=True, slots=True)
class CountRuns:
    """The runs of one number of clients: drafting, and as a control without drafts."""

    drafting: LoadRun
    stream: LoadRun | None


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
    if control and plan.settings.mode != "stream":
        step(f"{count} clients that do not draft", number, len(plan.clients))
        without = replace(assignment, settings=replace(plan.settings, mode="stream"))
        stream = await run_load(server, without, seconds, plan.workers)
    return CountRuns(drafting, stream)


async def run_load(server: ServerUnderTest, assignment: Assignment, seconds: float | None, num_workers: int) -> LoadRun:
    """Count for `seconds`, or until all clients have made their requests. Raises UsageError."""
    async with worker_pool(assignment, num_workers) as pool:
        begin = time.monotonic() + (0.0 if seconds is None else WARM_UP_S)
        pool.begin(CountingWindow(begin, float("inf") if seconds is None else begin + seconds))
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
        passes = difference(await server.passes(), passes_before)
    server_use, clients_use = (ResourceUse.between(first, last) for first, last in zip(before, after, strict=True))
    return load_run(counters, counted_s, server_use, clients_use, passes or None)


def measure_controls(plan: LoadPlan, texts: Sequence[LoadText], shares: CoreShares, step: Step) -> list[GenerateResult]:
    """Run transformers' generate over prompts from all of the mix: one by one, and in batches as large as each run."""
    generate, limit = GenerateControl(plan.settings.target, plan.dtype, plan.device, shares.server), plan.settings.limit
    singly = [[text] for text in _spread(texts, _CONTROL_PROMPTS)]
    batches = [static_batches(texts, count, plan.settings.seed) for count in plan.clients if count > 1]
    return [generate.measure(each, limit, step) for each in (singly, *batches)]


def _spread(texts: Sequence[LoadText], count: int) -> list[LoadText]:
    count = min(count, len(texts))
    return [texts[number * len(texts) // count] for number in range(count)]


@dataclass(frozen=True, slots=True)
class Baselines:
    """What the clients' speed is compared with."""

    controls: tuple[GenerateResult, ...]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was measured, by number of clients, and how."""

    plan: dict[str, Any]  # Any: JSON
    texts: int
    cores: CoreShares
    link_engine: str
    runs: tuple[LoadRun, ...] = ()
    controls: tuple[GenerateResult, ...] = ()
    streams: tuple[LoadRun, ...] = ()


class LoadStudy(Study[LoadOptions, Baselines | CountRuns, LoadReport]):
    """Rows are the baselines and each number of clients."""

    def __init__(self, options: LoadOptions) -> None:
        super().__init__(options)
        self._texts: Path  # file of the prompts and the target's answers

    async def run(self, taken: Mapping[str, Baselines | CountRuns], step: Step) -> Measured[Baselines | CountRuns]:
        options, plan, shares = self.options, self.options.plan, self.options.cores
        settings = plan.settings
        self._texts = load_texts(settings.target, plan.mix, settings.seed, plan.dtype, plan.device, step)
        if _BASELINES not in taken:
            controls = measure_controls(plan, read_texts(self._texts), shares, step) if options.control else []
            yield _BASELINES, Baselines(tuple(controls))
        if missing := [count for count in plan.clients if str(count) not in taken]:
            async with server_under_test(plan.server, plan.serve_options, shares.server) as server:
                for count in missing:
                    counted_s = options.counted_s
                    runs = await measure_count(
                        plan, count, server, self._texts, counted_s, shares, step, control=options.control
                    )
                    yield str(count), runs

    def report(self, rows: Mapping[str, Baselines | CountRuns]) -> LoadReport:
        plan, baselines = self.options.plan, rows[_BASELINES]
        counts = [one for count in plan.clients if isinstance(one := rows[str(count)], CountRuns)]
        return LoadReport(
            plan.as_dict(),
            len(read_texts(self._texts)),
            self.options.cores,
            "proxy" if plan.settings.profile else NO_LINK,
            runs=tuple(one.drafting for one in counts),
            controls=baselines.controls if isinstance(baselines, Baselines) else (),
            streams=tuple(one.stream for one in counts if one.stream is not None),
        )

    @staticmethod
    def tables(report: LoadReport) -> Iterable[ResultTable]:
        runs, controls, streams = report.runs, report.controls, report.streams
        yield throughput_table(title_of(report.plan), runs, controls, streams)
        yield latency_table(runs)
        yield use_table(runs)
        if controls:
            yield control_table(controls, streams)

    @staticmethod
    def failures(report: LoadReport) -> Iterable[str]:
        for run in (*report.runs, *report.streams):
            yield from run.examples
            if not run.is_right:
                counts = f"{run.wrong} wrong answers, {run.strays} verdicts twice or unasked, {run.lost} lost"
                yield f"{run.num_clients} clients: {counts}"

    @staticmethod
    def plot(report: LoadReport, path: Path) -> None:
        plot_load(title_of(report.plan), report.runs, report.controls, report.streams, path)
