"""Plots of the studies of the pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider_bench.core.plots import COLORS, reaches, saved_figure
from outrider_bench.studies.pair.evaluation import Evaluation
from outrider_bench.studies.pair.verify_cost import VerifyCost

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_evaluation(evaluation: Evaluation, path: Path) -> None:
    """Plot acceptance by family, and code pass@1 against the moment the link died."""
    if not evaluation.stop:  # a user's questions
        with saved_figure(path, figsize=(6.5, 4.5)) as (_, axes):
            _plot_acceptance(axes, evaluation)
        return
    with saved_figure(path, 1, 2, figsize=(12, 4.5)) as (_, (left, right)):
        _plot_acceptance(left, evaluation)
        _plot_outage(right, evaluation)


def plot_verify_costs(title: str, costs: Sequence[VerifyCost], path: Path) -> None:
    """Plot the time of a pass, in decodes, against its new tokens."""
    with saved_figure(path, figsize=(6.5, 4.5)) as (_, axes):
        sizes = [cost.tokens for cost in costs]
        ratios = {str(cost.tokens): cost.ratio for cost in costs}
        errors = reaches(ratios, {str(cost.tokens): cost.ratio_ci95 for cost in costs})
        axes.errorbar(sizes, list(ratios.values()), errors, fmt="o-", capsize=2, color=COLORS[0], label="one pass")
        axes.plot(sizes, sizes, "--", color="grey", label="as many decodes")
        axes.axhline(1, color="black", linewidth=1, label="one decode")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_yticks(sizes, [str(size) for size in sizes])
        axes.set_xlabel("new tokens in a pass")
        axes.set_ylabel("time of the pass, in decodes")
        axes.set_title(title, fontsize="medium")
        axes.legend(frameon=False)


def _plot_acceptance(axes: Axes, evaluation: Evaluation) -> None:
    series = {
        f"{name}, {shape}": accepted
        for name, result in evaluation.drafters.items()
        for shape, accepted in result.acceptance.items()
    }
    width = 0.8 / max(len(series), 1)
    for number, (label, accepted) in enumerate(series.items()):
        by_family, errors = accepted.by_family, reaches(accepted.by_family, accepted.ci95)
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(by_family))]
        color = COLORS[number % len(COLORS)]
        axes.bar(places, list(by_family.values()), width * 0.9, label=label, color=color, yerr=errors)
        axes.set_xticks(range(len(by_family)), list(by_family))
    axes.set_ylabel("tokens per verdict, bonus included")
    axes.set_title("mean acceptance length, held-out prompts")
    axes.set_ylim(bottom=1, top=axes.get_ylim()[1] + 0.6)  # room for the legend
    axes.legend(frameon=False, loc="upper center", ncols=len(series), fontsize="small")


def _plot_outage(axes: Axes, evaluation: Evaluation) -> None:
    for number, (name, result) in enumerate(evaluation.drafters.items()):
        axes.plot(list(result.outage), list(result.outage.values()), "o-", label=name, color=COLORS[2 * number % 4])
    axes.plot(list(evaluation.stop), list(evaluation.stop.values()), "x--", color="grey", label="stop")
    axes.axhline(evaluation.target_alone or 0.0, color="black", linewidth=1, label="target alone")
    axes.set_xlabel("tokens received before the link died")
    axes.set_ylabel("code pass@1")
    axes.set_title("the drafter alone from there on")
    axes.set_ylim(-0.02, 1.02)
    axes.legend(frameon=False)
