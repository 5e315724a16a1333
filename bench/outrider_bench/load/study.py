"""The study behind `outrider-bench load`: numbers of clients in turn, with what they are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider_bench.core.processes import CoreShares
from outrider_bench.core.progress import Step
from outrider_bench.core.tables import ResultTable
from outrider_bench.harness.study import Measured, Study
from outrider_bench.load.clients.texts import load_texts, read_texts
from outrider_bench.load.control import GenerateResult
from outrider_bench.load.metrics import LoadRun
from outrider_bench.load.options import NO_LINK, LoadOptions
from outrider_bench.load.report import (
    control_table,
    latency_table,
    plot_load,
    throughput_table,
    title_of,
    use_table,
)
from outrider_bench.load.run import CountRuns, measure_controls, measure_count
from outrider_bench.load.server_under_test import server_under_test

_BASELINES = "baselines"


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
