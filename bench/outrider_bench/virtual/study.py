"""The studies behind `outrider-bench virtual` and `sweep`: a tape replayed over links, or over a grid of points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.report import CsvFile
from outrider_bench.core.tables import ResultTable
from outrider_bench.harness.options import codec_of
from outrider_bench.harness.study import ReplayStudy
from outrider_bench.network.plots import plot_network
from outrider_bench.network.report import ReportedCase, network_report
from outrider_bench.network.tables import cost_table, first_token_table, speed_table, split_table
from outrider_bench.network.variants import ModeVariant
from outrider_bench.virtual.auto_grid import AUTO, AUTO_GRID, AutoResult, auto_table, measure_auto
from outrider_bench.virtual.comparison import (
    RealComparison,
    compare_with_real,
    comparison_table,
    summary,
    summary_lines,
)
from outrider_bench.virtual.options import SweepOptions, VirtualOptions
from outrider_bench.virtual.overhead_fit import fit_overheads
from outrider_bench.virtual.real_report import real_cases
from outrider_bench.virtual.replay import VIRTUAL_NOTE, ReplaySetup, link_of, replay_scenario
from outrider_bench.virtual.sweep import SweepConditions, SweepGrid, SweepPoint, plot_sweep, sweep, sweep_table
from outrider_bench.virtual.tape import Tape, Thinning, lengthened, only, thinned
from outrider_bench.virtual.texts import TapedTexts
from outrider_drafters.emulation.pace import Pace
from outrider_models.core.questions import read_questions
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class VirtualReport:
    """Figures by case, `overheads` by profile, and the deviations from real reports, which `tolerance` bounds."""

    cases: tuple[ReportedCase, ...]
    thin: float
    overheads: Mapping[str, Mapping[str, Any]]  # Any: JSON
    against: tuple[RealComparison, ...]
    tolerance: float


class VirtualStudy(ReplayStudy[VirtualOptions, VirtualReport]):
    """Every variant answers the taped prompts over every link."""

    def replay(self, step: Step) -> VirtualReport:
        options = self.options
        asked = None if options.questions is None else read_questions(options.questions)
        taped = only(Tape.load(options.tape), asked, None if options.families is None else options.families.split(","))
        texts = TapedTexts(thinned(lengthened(taped, options.prompt_tokens), Thinning(options.thin, options.seed)))
        variants = options.variants
        limit = options.max_new_tokens or min(recording.limit for recording in taped.recordings)
        judges = real_cases(options.against or ())
        names = options.profile or list(dict.fromkeys(judge.profile for judge in judges)) or ["paper-5g"]
        setup = ReplaySetup(texts, link_of(names[0]), Pace.load(options.pace), codec_of(options.codec), limit)
        fits = fit_overheads(options.overhead or (), judges, names, setup, options.tree, options.seed)
        scenarios = []
        with CsvFile(options.csv) as table:
            for name in names:
                over = replace(setup, profile=link_of(name), overhead=fits[name].overhead)
                scenarios.append(
                    replay_scenario(over, variants, options.runs, options.seed, step, options.prompt_tokens)
                )
                table.write(scenarios[-1].answers)
        return VirtualReport(
            tuple(scenario.reported for scenario in scenarios),
            options.thin,
            {name: fit.as_dict() for name, fit in fits.items()},
            tuple(compare_with_real(scenarios, fits, judges) if judges else ()),
            options.tolerance,
        )

    @classmethod
    def as_dict(cls, report: VirtualReport) -> dict[str, Any]:  # Any: JSON
        first = report.overheads[report.cases[0].profile]
        return network_report(report.cases) | {
            "note": VIRTUAL_NOTE,
            "thin": report.thin,
            "overhead": {name: value for name, value in first.items() if name != "fitted_on"},
            "overheads": report.overheads,
            "against": [one.as_dict() for one in report.against],
            "samples": summary(report.against),
            "tolerance": report.tolerance,
        }

    @staticmethod
    def tables(report: VirtualReport) -> Iterable[ResultTable]:
        for case in report.cases:
            for table in (speed_table, first_token_table, cost_table, split_table):
                yield table(case)
        if report.against:
            yield comparison_table(report.against)

    @staticmethod
    def notes(report: VirtualReport) -> Iterable[str]:
        return summary_lines(report.against)

    @staticmethod
    def failures(report: VirtualReport) -> Iterable[str]:
        for one in report.against:
            if abs(one.deviation) > report.tolerance:
                yield f"{one.way} over {one.judge}: off by {one.deviation:+.1%}, more than {report.tolerance:.1%}"
        for case in report.cases:
            if case.mismatches:
                yield f"{case.profile}: {case.mismatches} answers differ from the tape"

    @staticmethod
    def plot(report: VirtualReport, path: Path) -> None:
        plot_network(report.cases, path)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Points of the grid, or with --auto-grid `auto` at its own points."""

    conditions: Mapping[str, Any]  # Any: JSON
    points: tuple[SweepPoint, ...] | tuple[AutoResult, ...]

    @property
    def swept(self) -> tuple[SweepPoint, ...]:
        return tuple(point for point in self.points if isinstance(point, SweepPoint))

    @property
    def of_auto(self) -> tuple[AutoResult, ...]:
        return tuple(point for point in self.points if isinstance(point, AutoResult))


class SweepStudy(ReplayStudy[SweepOptions, SweepReport]):
    """Every mode at every point of a grid of round trips, times of a pass and drafters."""

    def replay(self, step: Step) -> SweepReport:
        options, tape = self.options, Tape.load(self.options.tape)
        grid = SweepGrid(*(tuple(options.numbers(name)) for name in ("rtt", "verify", "thin")))
        conditions = SweepConditions(
            Pace.load(options.pace),
            options.rate * 1e6,
            options.jitter,
            codec_of(options.codec),
            options.max_new_tokens,
            options.seed,
            options.rounds,
        )
        with CsvFile(options.csv) as table:
            if options.auto_grid:
                variants = [*options.variants, ModeVariant.parse(AUTO, options.tree)]
                counter = ProgressCounter(step, "points", 3 * len(AUTO_GRID))
                found = tuple(measure_auto(tape, AUTO_GRID, variants, conditions, counter, table.write))
                return SweepReport(asdict(conditions), found)
            counter = ProgressCounter(step, "points", len(grid))
            points = tuple(sweep(tape, grid, options.variants, conditions, counter, table.write))
            return SweepReport(asdict(conditions), points)

    @classmethod
    def as_dict(cls, report: SweepReport) -> dict[str, Any]:  # Any: JSON
        points = [point.as_dict() for point in report.points]
        return {"note": VIRTUAL_NOTE, "conditions": report.conditions, "points": points}

    @staticmethod
    def tables(report: SweepReport) -> Iterable[ResultTable]:
        yield auto_table(report.of_auto) if report.of_auto else sweep_table(report.swept)

    @staticmethod
    def notes(report: SweepReport) -> Iterable[str]:
        points = report.swept
        for name in points[0].tokens_per_second if points else ():
            won = [point for point in points if point.best == name]
            undecided = sum(point.is_decided is False for point in won)
            of_those = f", {undecided} of those within the 95 % interval of the second" if undecided else ""
            yield f"{name}: the fastest at {len(won)} of {len(points)} points{of_those}"

    @staticmethod
    def failures(report: SweepReport) -> Iterable[str]:
        if wrong := sum(point.mismatches for point in report.swept):
            yield f"{wrong} answers differ from the tape"
        for one in report.of_auto:
            if not one.holds:
                yield f"R {one.rtt_ms:g} ms, T_v {one.verify_ms:g} ms, tau {one.tau:.1f}: auto falls short"

    @staticmethod
    def plot(report: SweepReport, path: Path) -> None:
        if not report.swept:
            raise UsageError(f"--plot {path}: --auto-grid has no map")
        pace = report.conditions["pace"]["name"]
        title = f"the fastest mode, and how many times the stream (PACED as {pace})\n~: not beyond the second's 95 %"
        plot_sweep(report.swept, title, path)
