"""How much is accepted when features are late, coarse, or both: tau against lag and bits, as shares of tau without.

Every cell drafts the same answers, so shares are paired; their intervals come from resampling the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider_bench.core.in_process_pair import in_process
from outrider_bench.core.prompts import Question
from outrider_bench.studies.features.staleness_recording import BITS, Recording, codings, record
from outrider_bench.studies.features.staleness_walk import Lag, Walk
from outrider_client.core.config import ClientConfig
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_server.engine.target import Target

EXACT = "float32"
LATE = Lag(verdicts=1)
CODED = ("int4-grouped", "lean")  # what may be sent late as well
LAGS = (*(Lag(tokens=tokens) for tokens in (0, 1, 2, 3, 4, 6, 8, 10)), LATE, Lag(verdicts=2))
_RESAMPLED = 2000
_SEED = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """One way in which features fall short."""

    lag: Lag = Lag()  # noqa: RUF009 # frozen
    coding: str = EXACT


@dataclass(frozen=True, slots=True)
class Share:
    """Mean acceptance length, its share of that without any shortfall, and the share's 95 % interval over prompts."""

    tau: float
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measured:
    cell: Cell
    overall: Share
    by_family: Mapping[str, Share]


def cells(has_features: bool) -> list[Cell]:
    """All lags, all codings, and codings that are late too; of a drafter without features a few, as a control."""
    if not has_features:
        return [Cell(), Cell(Lag(tokens=10)), Cell(LATE)]
    coded = [Cell(coding=coding) for coding in ("int8", *CODED, *(f"{bits} bits" for bits in BITS))]
    return [*map(Cell, LAGS), *coded, *(Cell(LATE, coding) for coding in CODED)]


async def recorded(
    target: Target, target_dir: Path, drafter: Path, asked: Sequence[Question], answers: Sequence[tuple[int, ...]]
) -> tuple[Drafter, list[Recording]]:
    """A drafter and what its tap makes of all questions and the target's answers to them."""
    async with in_process(target_dir, ClientConfig(target=target_dir, drafter=drafter), target) as pair:
        assert pair.models.drafter is not None
        return pair.models.drafter, await record(pair, asked, answers)


def measure(
    drafter: Drafter,
    recordings: Sequence[Recording],
    families: Mapping[str, Sequence[int]],
    plan: TreePlan,
    chosen: Sequence[Cell],
    step: Callable[[], None] = lambda: None,
) -> list[Measured]:
    """Every cell, as shares of the first; `families` are numbers of recordings, `step` is called after each of them."""
    counts = _counts(drafter, recordings, plan, chosen, step)
    return [
        Measured(
            cell,
            share(mine, counts[0]),
            {name: share(mine[list(some)], counts[0][list(some)]) for name, some in families.items()},
        )
        for cell, mine in zip(chosen, counts, strict=True)
    ]


def share(counts: NDArray[np.int64], whole: NDArray[np.int64]) -> Share:
    """Of prompts' counts [prompts, (tokens, verdicts)] and of the same prompts' without a shortfall."""
    draws = np.random.default_rng(_SEED).integers(0, len(counts), (_RESAMPLED, len(counts)))
    low, high = np.quantile(_tau(counts[draws]) / _tau(whole[draws]), (0.025, 0.975))
    tau = float(_tau(counts))
    return Share(tau, tau / float(_tau(whole)), float(low), float(high))


def _tau(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Where no answer was longer than the prompt's own bonus there are no verdicts, and nothing to lose: 1."""
    tokens, verdicts = np.moveaxis(counts.sum(axis=-2), -1, 0)
    return np.where(verdicts, tokens / np.maximum(verdicts, 1), 1.0)


def _counts(
    drafter: Drafter,
    recordings: Sequence[Recording],
    plan: TreePlan,
    chosen: Sequence[Cell],
    step: Callable[[], None],
) -> list[NDArray[np.int64]]:
    """For every cell the tokens and verdicts [prompts, 2] of the answers."""
    counts: list[list[tuple[int, int]]] = [[] for _ in chosen]
    code = codings()
    for recording in recordings:
        walks = {
            coding: Walk(drafter, recording if coding == EXACT else recording.coded(code[coding]), plan)
            for coding in {cell.coding for cell in chosen}
        }
        for cell, mine in zip(chosen, counts, strict=True):
            committed = walks[cell.coding].committed_by_verdict(cell.lag)
            mine.append((sum(committed), len(committed)))
        step()
    return [np.array(mine) for mine in counts]
