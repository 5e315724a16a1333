"""Acceptance with late or coarse features, as a share of tau without either.

All degradations draft the same answers, so shares are paired; intervals come from resampling the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outrider_bench.core.acceptance import SHAPES
from outrider_bench.core.bootstrap import Interval, Resamples, quotient
from outrider_bench.core.pair import in_process
from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, by_family
from outrider_bench.core.reference_answers import answers_when_needed, plain_answers
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table
from outrider_bench.harness.study import Measured, Study
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_lab.studies.acceptance_replay import AcceptanceReplay, Lag
from outrider_lab.studies.options import StalenessOptions
from outrider_lab.studies.recorded_features import BITS, RecordedAnswer, codings, record
from outrider_server.engine.target import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXACT = "float32"
LATE = Lag(verdicts=1)
CODED = ("int4-grouped", "lean")  # what may be sent late as well
LAGS = (*(Lag(tokens=tokens) for tokens in (0, 1, 2, 3, 4, 6, 8, 10)), LATE, Lag(verdicts=2))


@dataclass(frozen=True, slots=True)
class Degradation:
    """A degradation of features: late, coarse or both."""

    lag: Lag = Lag()  # noqa: RUF009 # frozen
    coding: str = EXACT


@dataclass(frozen=True, slots=True)
class TauShare:
    """Mean acceptance length, its share of the undegraded one, and 95 % intervals of both over prompts.

    `low` and `high` are the share's.
    """

    tau: float
    share: float
    low: float
    high: float
    tau_ci95: Interval | None = None

    @property
    def cells(self) -> tuple[str, str]:
        """Tau and the share, for a table."""
        return plus_minus(self.tau, self.tau_ci95, 2), plus_minus(self.share, (self.low, self.high), 3)


@dataclass(frozen=True, slots=True)
class DegradationResult:
    cell: Degradation
    overall: TauShare
    by_family: Mapping[str, TauShare]


def degradations(has_features: bool) -> list[Degradation]:
    """Return all lags, all codings, and late codings; a few controls for a drafter without features."""
    if not has_features:
        return [Degradation(), Degradation(Lag(tokens=10)), Degradation(LATE)]
    coded = [Degradation(coding=coding) for coding in ("int8", *CODED, *(f"{bits} bits" for bits in BITS))]
    return [*map(Degradation, LAGS), *coded, *(Degradation(LATE, coding) for coding in CODED)]


def measure(
    drafter: Drafter,
    recordings: Sequence[RecordedAnswer],
    families: Mapping[str, Sequence[int]],
    plan: TreePlan,
    chosen: Sequence[Degradation],
    step: Callable[[], None] = lambda: None,
) -> list[DegradationResult]:
    """Measure every degradation as a share of the first.

    `families` are indices of recordings; `step` is called after each recording.
    """
    counts = _counts(drafter, recordings, plan, chosen, step)
    return [
        DegradationResult(
            cell,
            tau_share(mine, counts[0]),
            {name: tau_share(mine[list(some)], counts[0][list(some)]) for name, some in families.items()},
        )
        for cell, mine in zip(chosen, counts, strict=True)
    ]


def tau_share(counts: NDArray[np.int64], whole: NDArray[np.int64]) -> TauShare:
    """Compare prompts' counts [prompts, (tokens, verdicts)] with the same prompts' undegraded counts."""
    tau = _tau(counts)
    share = tau / _tau(whole)
    # The same draws for both sides, since shares are paired prompt by prompt.
    draws = Resamples(1, len(counts))
    drawn, drawn_whole = (quotient(draws.sums([n[:, 0]]), draws.sums([n[:, 1]])) for n in (counts, whole))
    low, high = draws.interval(quotient(drawn, drawn_whole)) or (share, share)
    return TauShare(tau, share, low, high, draws.interval(drawn))


def _tau(counts: NDArray[np.int64]) -> float:
    """Return tokens per verdict; 1 where no answer was longer than the prompt's own bonus."""
    tokens, verdicts = counts.sum(axis=0)
    return float(tokens / verdicts) if verdicts else 1.0


def _counts(
    drafter: Drafter,
    recordings: Sequence[RecordedAnswer],
    plan: TreePlan,
    chosen: Sequence[Degradation],
    step: Callable[[], None],
) -> list[NDArray[np.int64]]:
    """Return tokens and verdicts [prompts, 2] for every degradation."""
    counts: list[list[tuple[int, int]]] = [[] for _ in chosen]
    code = codings()
    for recording in recordings:
        walks = {
            coding: AcceptanceReplay(drafter, recording if coding == EXACT else recording.coded(code[coding]), plan)
            for coding in {cell.coding for cell in chosen}
        }
        for cell, mine in zip(chosen, counts, strict=True):
            committed = walks[cell.coding].committed_by_verdict(cell.lag)
            mine.append((sum(committed), len(committed)))
        step()
    return [np.array(mine) for mine in counts]


@dataclass(frozen=True, slots=True)
class AnsweredPrompts:
    """Prompts and the answers of the target in `directory`."""

    directory: Path
    target: Target
    asked: Sequence[Question]
    answers: Sequence[tuple[int, ...]]

    @classmethod
    def ask(cls, options: StalenessOptions, step: Step) -> AnsweredPrompts:
        """Ask the target the questions of the options."""
        directory, limit = options.directory, options.max_new_tokens
        models = LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER))
        asked = options.source.per_family(models, options.count, limit, answers_when_needed(directory))
        target = Target.load(str(directory))
        return cls(directory, target, asked, plain_answers(target, asked, limit, step))

    async def record_features(self, drafter: str) -> tuple[Drafter, list[RecordedAnswer]]:
        """Load a drafter and record its features for all questions and answers."""
        config = ClientConfig(target=self.directory, drafter=drafter)
        async with in_process(self.directory, config, self.target) as pair:
            assert pair.models.drafter is not None
            return pair.models.drafter, await record(pair, self.asked, self.answers)

    def measured(
        self,
        name: str,
        drafter: Drafter,
        recordings: Sequence[RecordedAnswer],
        chosen: Sequence[Degradation],
        step: Step,
    ) -> dict[str, list[DegradationResult]]:
        """Measure the degradations, by shape of the trees."""
        families = by_family(self.asked)
        return {
            shape: measure(
                drafter, recordings, families, plan, chosen, ProgressCounter(step, f"{name}, {shape}", len(self.asked))
            )
            for shape, plan in SHAPES.items()
        }


_ByShape = dict[str, list[DegradationResult]]  # by shape of the trees


@dataclass(frozen=True, slots=True)
class StalenessReport:
    per_family: int | None
    max_new_tokens: int
    drafters: Mapping[str, _ByShape]


class StalenessStudy(Study[StalenessOptions, _ByShape, StalenessReport]):
    """Records the features of each drafter, and replays its answers with all degradations."""

    async def run(self, taken: Mapping[str, _ByShape], step: Step) -> Measured[_ByShape]:
        answered = AnsweredPrompts.ask(self.options, step)
        for name, source in self.options.drafters.items():
            if name not in taken:
                drafter, recordings = await answered.record_features(source)
                chosen = degradations(has_features=bool(drafter.tap.fingerprint))
                yield name, answered.measured(name, drafter, recordings, chosen, step)

    def report(self, rows: Mapping[str, _ByShape]) -> StalenessReport:
        return StalenessReport(self.options.count, self.options.max_new_tokens, rows)

    @staticmethod
    def tables(report: StalenessReport) -> list[ResultTable]:
        drafters = report.drafters.items()
        return [staleness_table(name, shape, its) for name, of in drafters for shape, its in of.items()]

    @staticmethod
    def plot(report: StalenessReport, path: Path) -> None:
        plot_staleness(report.drafters, path)


def staleness_table(name: str, shape: str, measured: Sequence[DegradationResult]) -> ResultTable:
    columns, rows = ("", "tau", "share", "worst family"), [_row(one) for one in measured]
    title = f"{name}, {shape}: tau, and its share of that with all features"
    return table(title, columns, rows, caption=OVER_PROMPTS)


def _row(measured: DegradationResult) -> tuple[str, ...]:
    overall = measured.overall
    worst = min(measured.by_family, key=lambda family: measured.by_family[family].share)
    return (
        label(measured.cell),
        *overall.cells,
        f"{worst} {measured.by_family[worst].share:.3f}",
    )


def label(cell: Degradation) -> str:
    lag = _counted(cell.lag.verdicts, "verdict") if cell.lag.verdicts else _counted(cell.lag.tokens, "token")
    parts = [cell.coding] * (cell.coding != EXACT) + [f"{lag} late"] * (cell.lag != Lag())
    return ", ".join(parts) or "all there"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


_STYLES = {"chain": "o--", "tree": "s-"}


def plot_staleness(results: Mapping[str, Mapping[str, Sequence[DegradationResult]]], path: Path) -> None:
    """Plot the share of tau against tokens without features, and against bits per value."""
    with saved_figure(path, 1, 2, figsize=(12, 4.5), sharey=True) as (_, (left, right)):
        for number, (name, by_shape) in enumerate(results.items()):
            color = COLORS[number % len(COLORS)]
            for shape, measured in by_shape.items():
                _curve(left, measured, _tokens_late, f"{name}, {shape}", _STYLES[shape], color)
                _curve(right, measured, _bits, f"{name}, {shape}", _STYLES[shape], color)
        left.set_xlabel("newest tokens without features")
        left.set_ylabel("tau / tau with all features in float32")
        left.set_title("late features")
        left.legend(frameon=False, fontsize="small")
        right.set_xlabel("bits a value, a step for every 64")
        right.set_xticks(BITS)
        right.invert_xaxis()
        right.set_title("coarse features")
        for axes in (left, right):
            axes.axhline(1, color="black", linewidth=1)


def _curve(
    axes: Axes,
    measured: Sequence[DegradationResult],
    place: Callable[[Degradation], int | None],
    label: str,
    style: str,
    color: str,
) -> None:
    """Plot the degradations that have a position on the axis, with their intervals."""
    points = sorted((where, one.overall) for one in measured if (where := place(one.cell)) is not None)
    if len(points) < 2:
        return
    places = [where for where, _ in points]
    axes.plot(places, [one.share for _, one in points], style, color=color, label=label, markersize=4)
    axes.fill_between(places, [s.low for _, s in points], [s.high for _, s in points], color=color, alpha=0.12)


def _tokens_late(cell: Degradation) -> int | None:
    return None if cell.lag.verdicts or cell.coding != Degradation().coding else cell.lag.tokens


def _bits(cell: Degradation) -> int | None:
    bits, _, unit = cell.coding.partition(" ")
    return int(bits) if unit == "bits" and cell.lag == Degradation().lag else None
