"""Orderings that a paper claims, held against our own figures: each holds, fails or stays undecided.

Figures of two drafters are paired by prompt: what an easy prompt gives to one, it gives to the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from outrider_bench.core.bootstrap import Interval, Resamples, median_interval, quotient
from outrider_bench.core.stats import median_of_medians
from outrider_bench.core.tables import ResultTable, table

Outcome = Literal["holds", "fails", "undecided", "not measured"]
Report = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; None: of a single prompt. `seeds`: how often the drafters were trained."""

    figure: float
    interval: Interval | None
    seeds: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """One ordering: `measured`, a ratio or a difference, is above `bound` where it holds, and below `ceiling`.

    With a ceiling it is an equivalence. `papers` are the paper's own figures, in words; `measured` is None where a
    drafter is missing.
    """

    text: str
    papers: str
    measured: Estimate | None
    bound: float = 1.0
    ceiling: float = math.inf

    @property
    def outcome(self) -> Outcome:
        if self.measured is None:
            return "not measured"
        if self.measured.interval is None:  # of a single prompt, which says nothing about others
            return "undecided"
        low, high = self.measured.interval
        if self.bound < low and high < self.ceiling:
            return "holds"
        return "fails" if high < self.bound or self.ceiling < low else "undecided"

    @property
    def condition(self) -> str:
        return f"> {self.bound:.3g}" + ("" if math.isinf(self.ceiling) else f", < {self.ceiling:.3g}")


def claims_table(claims: Sequence[tuple[str, Claim]]) -> ResultTable:
    """Build a row per claim; each comes with where it stands, and if drafters were trained repeatedly, how often."""
    rows = [[where, claim.text, claim.papers, _cell(claim), claim.condition, claim.outcome] for where, claim in claims]
    columns = ["where", "claim", "the paper's", "measured", "holds if", "outcome"]
    caption = "measured: a ratio, or where it is held against 0 a difference, with its 95 % interval over the prompts"
    seeds = [0 if claim.measured is None else claim.measured.seeds for _, claim in claims]
    if any(count > 1 for count in seeds):
        columns.insert(4, "seeds")
        for row, count in zip(rows, seeds, strict=True):
            row.insert(4, f"{count or '-'}")
        caption += (
            "; with several training seeds of the drafters it is over all of them, seeds and prompts drawn at random "
            "(bootstrap), with one it says nothing about others. All other tables are of the first seed"
        )
    return table("orderings", columns, rows, keys=3, caption=caption)


def _cell(claim: Claim) -> str:
    """Format both ends: by the farther one alone, `1.09 ±0.09` would seem to leave undecided what holds."""
    if claim.measured is None:
        return "-"
    figure, interval = f"{claim.measured.figure:.2f}", claim.measured.interval
    return figure if interval is None else f"{figure} ({interval[0]:.2f} to {interval[1]:.2f})"


Prompts = Sequence[Mapping[str, Any]]  # Any: JSON of PromptFigures


def tau_ratio(prompts: Prompts, above: str, below: str, more_seeds: Sequence[Prompts] = ()) -> Estimate | None:
    """Return the ratio of two drafters' mean acceptance lengths over the same prompts; None without one of them.

    `more_seeds` are the same prompts with the same two drafters, trained with other seeds.
    """
    seeds = _with_both("judged", (prompts, *more_seeds), above, below)
    if not seeds:
        return None
    measures = [
        [[prompt[key][name] for prompt in asked] for asked in seeds]
        for name in (above, below)
        for key in ("judged", "verdicts")
    ]
    return ratio_of_ratios(*measures, seeds=len(seeds))


def _with_both(figure: str, seeds: Sequence[Prompts], above: str, below: str) -> list[Prompts]:
    """Return those seeds that have both drafters."""
    return [prompts for prompts in seeds if prompts and {above, below} <= prompts[0][figure].keys()]


def ratio_of_ratios(
    above: Sequence[Sequence[float]],
    of_above: Sequence[Sequence[float]],
    below: Sequence[Sequence[float]],
    of_below: Sequence[Sequence[float]],
    *,
    seeds: int = 1,
) -> Estimate | None:
    """Return (sum(above) / sum(of_above)) / (sum(below) / sum(of_below)), all [runs, prompts]; None of nothing.

    `seeds`: how often the drafters of these runs were trained.
    """
    totals = [float(np.sum(measure)) for measure in (above, of_above, below, of_below)]
    if not all(totals):
        return None
    draws = Resamples(*np.atleast_2d(above).shape)
    sums = [draws.sums(measure) for measure in (above, of_above, below, of_below)]
    interval = draws.interval(quotient(quotient(sums[0], sums[1]), quotient(sums[2], sums[3])))
    return Estimate(totals[0] / totals[1] / (totals[2] / totals[3]), interval, seeds)


def difference_of_ratios(
    above: Sequence[Sequence[float]],
    of_above: Sequence[Sequence[float]],
    below: Sequence[Sequence[float]],
    of_below: Sequence[Sequence[float]],
) -> Estimate | None:
    """Return sum(above) / sum(of_above) - sum(below) / sum(of_below), all [seeds, prompts]; None of nothing."""
    totals = [float(np.sum(measure)) for measure in (above, of_above, below, of_below)]
    if not totals[1] or not totals[3]:
        return None
    draws = Resamples(*np.shape(above))
    sums = [draws.sums(measure) for measure in (above, of_above, below, of_below)]
    interval = draws.interval(quotient(sums[0], sums[1]) - quotient(sums[2], sums[3]))
    return Estimate(totals[0] / totals[1] - totals[2] / totals[3], interval, len(above))


def speed_ratio(prompts: Prompts, above: str, below: str, more_seeds: Sequence[Prompts] = ()) -> Estimate | None:
    """Return how many times as fast one way is as another, the median over the same prompts; None without one.

    `more_seeds` as for `tau_ratio`.
    """
    seeds = _with_both("seconds", (prompts, *more_seeds), above, below)
    if not seeds:
        return None
    by_seed = [
        [
            [its / mine for its, mine in zip(prompt["seconds"][below], prompt["seconds"][above], strict=True)]
            for prompt in asked
        ]
        for asked in seeds
    ]  # [seeds, prompts, repetitions]
    # Runs to draw from: of one seed its repetitions, of several the seeds, as repetitions of one do not make up for it.
    ratios = np.transpose(by_seed[0]) if len(seeds) == 1 else np.median(by_seed, axis=2)
    return Estimate(median_of_medians(ratios.tolist()) or 0.0, median_interval(ratios), len(seeds))


def share_difference(above: Sequence[Sequence[bool]], below: Sequence[Sequence[bool]]) -> Estimate | None:
    """Return how much larger one share of right answers is than another to the same questions; None of nothing.

    Both: whether an answer is right, [seeds, questions].
    """
    if not np.size(above) or np.shape(above) != np.shape(below):
        return None
    differences = np.subtract(above, below, dtype=float)
    seeds, questions = differences.shape
    draws = Resamples(seeds, questions)
    interval = draws.interval(draws.sums(differences) / max(questions - 1, 1))
    return Estimate(float(np.mean(differences)), interval, seeds)


def of_family(prompts: Prompts, family: str) -> Prompts:
    """Return the prompts of one family."""
    return [prompt for prompt in prompts if prompt["family"] == family]
