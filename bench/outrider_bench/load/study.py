"""The study behind `outrider-bench load`: numbers of clients in turn, with what they are held against; or a soak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider_bench.core.progress import Step
from outrider_bench.core.tables import ResultTable, show_line
from outrider_bench.harness.study import Measured, Study
from outrider_bench.load.clients.texts import load_texts, read_texts
from outrider_bench.load.control import GenerateResult
from outrider_bench.load.measures.memory_growth import MemorySample
from outrider_bench.load.measures.process_use import CoreShares
from outrider_bench.load.metrics import LoadRun
from outrider_bench.load.options import LoadOptions
from outrider_bench.load.plot import plot_load, plot_memory
from outrider_bench.load.run import (
    Baselines,
    CountRuns,
    measure_controls,
    measure_count,
    plan_as_dict,
    run_soak,
    title_of,
)
from outrider_bench.load.server_under_test import server_under_test
from outrider_bench.load.tables import (
    control_table,
    latency_table,
    soak_table,
    throughput_table,
    use_table,
)

_BASELINES, _SOAK = "baselines", "soak"


@dataclass(frozen=True, slots=True)
class Soaked:
    """A soak's plan and result."""

    soak: dict[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was measured, by number of clients, or in a soak, and how."""

    plan: dict[str, Any]  # Any: JSON
    texts: int
    cores: CoreShares
    link_engine: str
    runs: tuple[LoadRun, ...] = ()
    controls: tuple[GenerateResult, ...] = ()
    streams: tuple[LoadRun, ...] = ()
    soak: dict[str, Any] | None = None  # Any: JSON


class LoadStudy(Study[LoadOptions, Baselines | CountRuns | Soaked, LoadReport]):
    """Rows are the baselines and each number of clients; a soak is one row."""

    def __init__(self, options: LoadOptions) -> None:
        super().__init__(options)
        self._texts: Path  # file of the prompts and the target's answers

    async def run(
        self, taken: Mapping[str, Baselines | CountRuns | Soaked], step: Step
    ) -> Measured[Baselines | CountRuns | Soaked]:
        options, plan, shares = self.options, self.options.plan, self.options.cores
        how = options.soak_plan if options.soak else None
        self._texts = load_texts(plan.target, plan.mix, plan.seed, plan.dtype, plan.device, step)
        if how is not None:
            if _SOAK not in taken:
                result = await run_soak(plan, how, self._texts, shares, show_line)
                yield _SOAK, Soaked({**asdict(how), **result.to_json()})
            return
        if _BASELINES not in taken:
            texts = read_texts(self._texts)
            controls = measure_controls(plan, texts, shares, step) if options.control else []
            yield _BASELINES, Baselines(tuple(controls))
        missing = [count for count in plan.clients if str(count) not in taken]
        if missing:
            async with server_under_test(plan.server, plan.serve_options, shares.server) as server:
                for count in missing:
                    counted = options.counted_s
                    runs = await measure_count(
                        plan, count, server, self._texts, counted, shares, step, control=options.control
                    )
                    yield str(count), runs

    def report(self, rows: Mapping[str, Baselines | CountRuns | Soaked]) -> LoadReport:
        plan, soaked, baselines = self.options.plan, rows.get(_SOAK), rows.get(_BASELINES)
        counts = [one for count in plan.clients if isinstance(one := rows.get(str(count)), CountRuns)]
        return LoadReport(
            **plan_as_dict(plan, read_texts(self._texts), self.options.cores),
            runs=tuple(one.drafting for one in counts),
            controls=baselines.controls if isinstance(baselines, Baselines) else (),
            streams=tuple(one.stream for one in counts if one.stream is not None),
            soak=soaked.soak if isinstance(soaked, Soaked) else None,
        )

    @staticmethod
    def tables(report: LoadReport) -> Iterable[ResultTable]:
        runs, controls, streams = report.runs, report.controls, report.streams
        if report.soak is not None:
            yield soak_table(report.soak)
            return
        yield throughput_table(title_of(report.plan), runs, controls, streams)
        yield latency_table(runs)
        yield use_table(runs)
        if controls:
            yield control_table(controls, streams)

    @staticmethod
    def failures(report: LoadReport) -> Iterable[str]:
        if report.soak is not None:
            yield from (example for counters in report.soak["clients"] for example in counters["examples"])
            yield from (f"deviation: {deviation}" for deviation in report.soak["deviations"])
        for run in (*report.runs, *report.streams):
            yield from run.examples
            if not run.is_right:
                counts = f"{run.wrong} wrong answers, {run.strays} verdicts twice or unasked, {run.lost} lost"
                yield f"{run.num_clients} clients: {counts}"

    @staticmethod
    def plot(report: LoadReport, path: Path) -> None:
        title = title_of(report.plan)
        if report.soak is not None:
            samples = [MemorySample(**sample) for sample in report.soak["samples"]]
            plot_memory(title, samples, report.soak["warm_up_s"], path)
        else:
            plot_load(title, report.runs, report.controls, report.streams, path)
