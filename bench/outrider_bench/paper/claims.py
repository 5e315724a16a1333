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
from outrider_bench.core.tables import ResultTable, plus_minus, table

Outcome = Literal["holds", "fails", "undecided", "not measured"]
Report = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; None: of a single prompt."""

    figure: float
    interval: Interval | None


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
    """Build a row per claim; each comes with where it stands."""
    rows = [[where, claim.text, claim.papers, _cell(claim), claim.condition, claim.outcome] for where, claim in claims]
    caption = "measured: a ratio, or where it is held against 0 a difference, with its 95 % interval over the prompts"
    return table(
        "orderings", ("where", "claim", "the paper's", "measured", "holds if", "outcome"), rows, keys=3, caption=caption
    )


def _cell(claim: Claim) -> str:
    return "-" if claim.measured is None else plus_minus(claim.measured.figure, claim.measured.interval, 2)


Prompts = Sequence[Mapping[str, Any]]  # Any: JSON of PromptFigures


def tau_ratio(prompts: Prompts, above: str, below: str) -> Estimate | None:
    """Return the ratio of two drafters' mean acceptance lengths over the same prompts; None without one of them."""
    if not prompts or not {above, below} <= prompts[0]["judged"].keys():
        return None
    measures = [
        [[prompt[key][name] for prompt in prompts]] for name in (above, below) for key in ("judged", "verdicts")
    ]
    return ratio_of_ratios(*measures)


def ratio_of_ratios(
    above: Sequence[Sequence[float]],
    of_above: Sequence[Sequence[float]],
    below: Sequence[Sequence[float]],
    of_below: Sequence[Sequence[float]],
) -> Estimate | None:
    """Return (sum(above) / sum(of_above)) / (sum(below) / sum(of_below)), all [runs, prompts]; None of nothing."""
    totals = [float(np.sum(measure)) for measure in (above, of_above, below, of_below)]
    if not all(totals):
        return None
    draws = Resamples(*np.atleast_2d(above).shape)
    sums = [draws.sums(measure) for measure in (above, of_above, below, of_below)]
    interval = draws.interval(quotient(quotient(sums[0], sums[1]), quotient(sums[2], sums[3])))
    return Estimate(totals[0] / totals[1] / (totals[2] / totals[3]), interval)


def difference_of_ratios(
    above: Sequence[float], of_above: Sequence[float], below: Sequence[float], of_below: Sequence[float]
) -> Estimate | None:
    """Return sum(above) / sum(of_above) - sum(below) / sum(of_below), all [prompts]; None of nothing."""
    if not sum(of_above) or not sum(of_below):
        return None
    draws = Resamples(1, len(above))
    sums = [draws.sums([measure]) for measure in (above, of_above, below, of_below)]
    interval = draws.interval(quotient(sums[0], sums[1]) - quotient(sums[2], sums[3]))
    return Estimate(sum(above) / sum(of_above) - sum(below) / sum(of_below), interval)


def speed_ratio(prompts: Prompts, above: str, below: str) -> Estimate | None:
    """Return how many times as fast one way is as another, the median over the same prompts; None without one."""
    if not prompts or not {above, below} <= prompts[0]["seconds"].keys():
        return None
    # [prompts, repetitions] in the report, [repetitions, prompts] here
    ratios = [
        list(run)
        for run in zip(
            *(
                [its / mine for its, mine in zip(prompt["seconds"][below], prompt["seconds"][above], strict=True)]
                for prompt in prompts
            ),
            strict=True,
        )
    ]
    return Estimate(median_of_medians(ratios) or 0.0, median_interval(ratios))


def share_difference(above: Sequence[bool], below: Sequence[bool]) -> Estimate | None:
    """Return how much larger one share of right answers is than another to the same questions; None of nothing."""
    if not above or len(above) != len(below):
        return None
    differences = [[float(mine) - float(its) for mine, its in zip(above, below, strict=True)]]
    draws = Resamples(1, len(above))
    return Estimate(float(np.mean(differences)), draws.interval(draws.sums(differences) / max(len(above) - 1, 1)))


def of_family(prompts: Prompts, family: str) -> Prompts:
    """Return the prompts of one family."""
    return [prompt for prompt in prompts if prompt["family"] == family]
