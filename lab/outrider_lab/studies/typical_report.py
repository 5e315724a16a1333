"""Figures, tables and plot of acceptance rules: tokens a verdict, length and quality of the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from outrider_bench.core.bootstrap import Floats, Interval, ratio_interval
from outrider_bench.core.plots import COLORS, reaches, saved_figure
from outrider_bench.core.stats import ratio, share_interval
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TARGET = "target alone"
_DIGITS = {"tau": 2, "tokens": 1, "perplexity": 3, "right": 2}  # columns
_QUALITY = {"right": "share of right answers", "perplexity": "perplexity under the target"}


@dataclass(frozen=True, slots=True)
class Rule:
    """What is accepted of a draft; `epsilon` belongs to typical acceptance."""

    name: Literal["greedy", "sampling", "typical"]
    epsilon: float | None = None

    def __str__(self) -> str:
        return self.name if self.epsilon is None else f"{self.name} {self.epsilon:g}"


GREEDY, SAMPLING = Rule("greedy"), Rule("sampling")


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """An answer, the verdicts on its drafts, and the tokens of these verdicts, bonus included.

    `log_likelihood` is the target's, of all tokens at temperature 1, in nats. `is_right` is None where nobody says.
    """

    family: str
    token_ids: tuple[int, ...]
    verdicts: int
    judged: int
    log_likelihood: float
    is_right: bool | None


@dataclass(frozen=True, slots=True)
class RuleResult:
    """All answers that a drafter brought by a rule; runs ask the same with one seed each.

    `rounded` counts sampled ones that depart from the target's own on a border of two tokens' probabilities.
    """

    drafter: str
    rule: Rule
    runs: list[list[ScoredAnswer]]  # [runs][questions]
    rounded: int = 0

    @property
    def figures(self) -> dict[str, Any]:  # Any: figures, and intervals or None
        """Tokens a verdict and an answer, perplexity, share of right answers; `NAME_ci95` are 95 % intervals.

        Without tau for the target alone, and without `right` where nobody says which answer that is.
        """
        tokens = self._each(lambda one: len(one.token_ids))
        nats = self._each(lambda one: -one.log_likelihood)
        surprise = ratio_interval(nats, tokens)
        figures: dict[str, Any] = {
            "tokens": float(np.mean(tokens)),
            "tokens_ci95": ratio_interval(tokens, np.ones_like(tokens)),
            "perplexity": math.exp(np.sum(nats) / np.sum(tokens)),
            "perplexity_ci95": None if surprise is None else (math.exp(surprise[0]), math.exp(surprise[1])),
        }
        judged, verdicts = self._each(lambda one: one.judged), self._each(lambda one: one.verdicts)
        if (tau := ratio(float(np.sum(judged)), float(np.sum(verdicts)))) is not None:
            figures |= {"tau": tau, "tau_ci95": ratio_interval(judged, verdicts)}
        if (right := self.right()) is not None:
            figures |= {"right": right[0], "right_ci95": right[1]}
        return figures

    def right(self, family: str | None = None) -> tuple[float, Interval | None] | None:
        """Return the share of right answers to a family's questions, or to all, and its interval; None of none."""
        shares = self._each(lambda one: float(bool(one.is_right)))  # [runs, questions]
        judged = [one.is_right is not None and family in (None, one.family) for one in self.runs[0]]
        if not any(judged):
            return None
        of_questions = shares[:, judged].mean(axis=0)
        # Seeds add no questions: the interval is that of one run with so many right answers.
        return float(of_questions.mean()), share_interval(round(of_questions.sum()), len(of_questions))

    def differing(self, own: RuleResult) -> int:
        """Return the number of answers that are not the other ones, token for token."""
        pairs = (pair for runs in zip(self.runs, own.runs, strict=True) for pair in zip(*runs, strict=True))
        return sum(one.token_ids != its.token_ids for one, its in pairs)

    def _each(self, measure: Callable[[ScoredAnswer], float]) -> Floats:
        return np.array([[measure(one) for one in run] for run in self.runs], dtype=float)


@dataclass(frozen=True, slots=True)
class TypicalReport:
    """Results of the target alone, which has no typical acceptance, and of every drafter."""

    temperature: float
    results: list[RuleResult]

    def of(self, drafter: str) -> dict[Rule, RuleResult]:
        return {one.rule: one for one in self.results if one.drafter == drafter}

    @property
    def drafters(self) -> list[str]:
        return list(dict.fromkeys(one.drafter for one in self.results if one.drafter != TARGET))

    def mismatches(self, result: RuleResult) -> int | None:
        """Return how many answers are not the target's own, apart from those that rounding explains.

        None where they need not be, and for the target itself.
        """
        own = self.of(TARGET).get(result.rule)
        return None if own is None or result.drafter == TARGET else result.differing(own) - result.rounded


def rules_table(report: TypicalReport) -> ResultTable:
    """Build the table of all figures, a row per drafter and rule."""
    rows = []
    for result in report.results:
        figures, mismatches = result.figures, report.mismatches(result)
        cells = (plus_minus(figures.get(name), figures.get(f"{name}_ci95"), digits) for name, digits in _DIGITS.items())
        rows.append([result.drafter, f"{result.rule}", *cells, "-" if mismatches is None else f"{mismatches}"])
    columns = ("drafter", "rule", "tau", "tokens an answer", "perplexity", "right", "not exact")
    title = f"temperature {report.temperature:g}; typical: by epsilon, with alpha its square root"
    caption = f"tau: tokens a verdict, bonus included; perplexity: under the target at temperature 1; {OVER_PROMPTS}"
    return table(title, columns, rows, keys=2, caption=caption)


def right_table(report: TypicalReport) -> ResultTable | None:
    """Build the table of right answers by family; None where nobody says which answers are right."""
    families = dict.fromkeys(one.family for one in report.results[0].runs[0] if one.is_right is not None)
    if not families:
        return None
    rows = []
    for result in report.results:
        shares = (result.right(family) for family in families)
        rows.append([result.drafter, str(result.rule), *("-" if s is None else plus_minus(*s, 2) for s in shares)])
    return table("share of right answers", ("drafter", "rule", *families), rows, keys=2, caption=OVER_PROMPTS)


def plot_typical(report: TypicalReport, path: Path) -> None:
    """Plot tokens a verdict and quality against epsilon, with the controls as lines."""
    own = report.of(TARGET)
    quality = "right" if "right" in own[GREEDY].figures else "perplexity"
    with saved_figure(path, 1, 2, figsize=(11, 4)) as (_, (left, right)):
        for number, drafter in enumerate(report.drafters):
            color, results = COLORS[number % len(COLORS)], report.of(drafter)
            for axes, name in ((left, "tau"), (right, quality)):
                _plot_typical(axes, results, name, drafter, color)
            _plot_controls(left, results, "tau", drafter, color)
        _plot_controls(right, own, quality, TARGET, "black")
        left.set_ylabel("tokens a verdict, bonus included")
        right.set_ylabel(_QUALITY[quality])
        for axes in (left, right):
            axes.set_xlabel("epsilon")
            axes.legend(frameon=False, fontsize="small")


def _plot_typical(axes: Axes, results: Mapping[Rule, RuleResult], name: str, label: str, color: str) -> None:
    by_epsilon = {rule.epsilon: one.figures for rule, one in results.items() if rule.epsilon is not None}
    places = {f"{epsilon}": epsilon for epsilon, figures in by_epsilon.items() if name in figures}
    values = {text: by_epsilon[epsilon][name] for text, epsilon in places.items()}
    errors = reaches(values, {text: by_epsilon[epsilon][f"{name}_ci95"] for text, epsilon in places.items()})
    axes.errorbar(
        list(places.values()), list(values.values()), yerr=errors, fmt="o-", capsize=3, color=color, label=label
    )


def _plot_controls(axes: Axes, results: Mapping[Rule, RuleResult], name: str, label: str, color: str) -> None:
    for rule, style in ((SAMPLING, ":"), (GREEDY, "--")):
        if name in (figures := results[rule].figures):  # no tau without verdicts on drafts
            axes.axhline(figures[name], color=color, linestyle=style, linewidth=1, label=f"{label}, {rule}")
