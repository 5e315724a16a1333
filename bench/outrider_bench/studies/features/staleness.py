"""Acceptance with late or coarse features, as a share of tau without either.

All degradations draft the same answers, so shares are paired; intervals come from resampling the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider_bench.core.acceptance import SHAPES
from outrider_bench.core.bootstrap import Interval, Resamples, quotient
from outrider_bench.core.pair import in_process
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, QuestionSource, by_family
from outrider_bench.core.reference_answers import answers_when_needed, plain_answers
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table
from outrider_bench.studies.features.acceptance_replay import AcceptanceReplay, Lag
from outrider_bench.studies.features.recorded_features import BITS, RecordedAnswer, codings, record
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_server.engine.target import Target

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


async def record_features(
    target: Target, target_dir: Path, drafter: str | Path, asked: Sequence[Question], answers: Sequence[tuple[int, ...]]
) -> tuple[Drafter, list[RecordedAnswer]]:
    """Load a drafter and record its features for all questions and answers."""
    async with in_process(target_dir, ClientConfig(target=target_dir, drafter=drafter), target) as pair:
        assert pair.models.drafter is not None
        return pair.models.drafter, await record(pair, asked, answers)


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
    def ask(
        cls, directory: Path, source: QuestionSource, per_family: int | None, limit: int, step: Step
    ) -> AnsweredPrompts:
        """Ask the target in `directory` `per_family` questions per family (None: all of a file)."""
        models = LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER))
        asked = source.per_family(models, per_family, limit, answers_when_needed(directory))
        target = Target.load(str(directory))
        return cls(directory, target, asked, plain_answers(target, asked, limit, step))

    async def record_features(self, drafter: str) -> tuple[Drafter, list[RecordedAnswer]]:
        """Load a drafter and record its features for all questions and answers."""
        return await record_features(self.target, self.directory, drafter, self.asked, self.answers)

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


StalenessResults = dict[str, dict[str, list[DegradationResult]]]  # by drafter and shape of the trees


async def measure_staleness(
    directory: Path, drafters: Mapping[str, str], asked: QuestionSource, per_family: int | None, limit: int, step: Step
) -> StalenessResults:
    answered = AnsweredPrompts.ask(directory, asked, per_family, limit, step)
    results: StalenessResults = {}
    for name, source in drafters.items():
        drafter, recordings = await answered.record_features(source)
        chosen = degradations(has_features=bool(drafter.tap.fingerprint))
        results[name] = answered.measured(name, drafter, recordings, chosen, step)
    return results


def staleness_as_dict(results: StalenessResults) -> dict[str, Any]:  # Any: a report's content
    return {
        name: {shape: [asdict(measured) for measured in all_cells] for shape, all_cells in by_shape.items()}
        for name, by_shape in results.items()
    }


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
