"""The studies behind `outrider-lab virtual` and `sweep`: a tape replayed over links, or over a grid of points."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.tables import ResultTable
from outrider_bench.harness.study import WHOLE, OptionsT, ReportT, Study
from outrider_bench.network.plots import plot_network
from outrider_bench.network.report import ReportedCase, network_report
from outrider_bench.network.tables import cost_table, first_token_table, speed_table, split_table
from outrider_drafters.emulation.pace import Pace
from outrider_lab.virtual.options import SweepOptions, VirtualOptions
from outrider_lab.virtual.replay import VIRTUAL_NOTE, ReplaySetup, link_of, replay_scenario
from outrider_lab.virtual.sweep import SweepConditions, SweepGrid, SweepPoint, plot_sweep, sweep, sweep_table
from outrider_lab.virtual.tape import Tape, Thinning, thinned
from outrider_lab.virtual.texts import TapedTexts


class ReplayStudy(Study[OptionsT, ReportT, ReportT]):
    """A study that is measured as a whole, in event loops of its own: those of virtual clocks."""

    @abstractmethod
    def replay(self, step: Step) -> ReportT:
        """Replay everything."""

    def measure_missing(self, taken: Mapping[str, ReportT], take: Callable[[str, ReportT], None], step: Step) -> None:
        if WHOLE not in taken:
            take(WHOLE, self.replay(step))

    def report(self, rows: Mapping[str, ReportT]) -> ReportT:
        return rows[WHOLE]


@dataclass(frozen=True, slots=True)
class VirtualReport:
    """Figures by case, of a drafter that misses a share `thin` of the tokens."""

    cases: tuple[ReportedCase, ...]
    thin: float


class VirtualStudy(ReplayStudy[VirtualOptions, VirtualReport]):
    """Every variant answers the taped prompts over every link."""

    def replay(self, step: Step) -> VirtualReport:
        options, taped = self.options, Tape.load(self.options.tape)
        texts = TapedTexts(thinned(taped, Thinning(options.thin, options.seed)))
        variants = options.variants
        limit = options.max_new_tokens or min(recording.limit for recording in taped.recordings)
        names = options.profile or ("paper-5g",)
        setup = ReplaySetup(texts, link_of(names[0]), Pace.load(options.pace), options.codec, limit)
        scenarios = [
            replay_scenario(replace(setup, profile=link_of(name)), variants, options.runs, options.seed, step)
            for name in names
        ]
        return VirtualReport(tuple(scenario.reported for scenario in scenarios), options.thin)

    @classmethod
    def as_dict(cls, report: VirtualReport) -> dict[str, Any]:  # Any: JSON
        return network_report(report.cases) | {"note": VIRTUAL_NOTE, "thin": report.thin}

    @staticmethod
    def tables(report: VirtualReport) -> Iterable[ResultTable]:
        for case in report.cases:
            for table in (speed_table, first_token_table, cost_table, split_table):
                yield table(case)

    @staticmethod
    def failures(report: VirtualReport) -> Iterable[str]:
        for case in report.cases:
            if case.mismatches:
                yield f"{case.profile}: {case.mismatches} answers differ from the tape"

    @staticmethod
    def plot(report: VirtualReport, path: Path) -> None:
        plot_network(report.cases, path)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Points of the grid."""

    conditions: Mapping[str, Any]  # Any: JSON
    points: tuple[SweepPoint, ...]


class SweepStudy(ReplayStudy[SweepOptions, SweepReport]):
    """Every mode at every point of a grid of round trips, times of a pass and drafters."""

    def replay(self, step: Step) -> SweepReport:
        options, tape = self.options, Tape.load(self.options.tape)
        grid = SweepGrid(*(tuple(options.numbers(name)) for name in ("rtt", "verify", "thin")))
        conditions = SweepConditions(Pace.load(options.pace), options.codec, options.max_new_tokens, options.seed)
        points = sweep(tape, grid, options.variants, conditions, ProgressCounter(step, "points", len(grid)))
        return SweepReport(asdict(conditions), tuple(points))

    @classmethod
    def as_dict(cls, report: SweepReport) -> dict[str, Any]:  # Any: JSON
        points = [point.as_dict() for point in report.points]
        return {"note": VIRTUAL_NOTE, "conditions": report.conditions, "points": points}

    @staticmethod
    def tables(report: SweepReport) -> Iterable[ResultTable]:
        yield sweep_table(report.points)

    @staticmethod
    def notes(report: SweepReport) -> Iterable[str]:
        points = report.points
        for name in points[0].tokens_per_second:
            won = [point for point in points if point.best == name]
            undecided = sum(point.is_decided is False for point in won)
            of_those = f", {undecided} of those within the 95 % interval of the second" if undecided else ""
            yield f"{name}: the fastest at {len(won)} of {len(points)} points{of_those}"

    @staticmethod
    def failures(report: SweepReport) -> Iterable[str]:
        if wrong := sum(point.mismatches for point in report.points):
            yield f"{wrong} answers differ from the tape"

    @staticmethod
    def plot(report: SweepReport, path: Path) -> None:
        pace = report.conditions["pace"]["name"]
        title = f"the fastest mode, and how many times the stream (PACED as {pace})\n~: not beyond the second's 95 %"
        plot_sweep(report.points, title, path)
