"""What no paper measures of drafters: a position's acceptance beside its cost, worth of confidence, temperatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from outrider_bench.core.bootstrap import ratio_interval
from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.core.tables import OVER_PROMPTS, plus_minus, table
from outrider_client.core.head_statistics import TENTHS
from outrider_lab.paper.claims import Claim, Prompts, tau_ratio
from outrider_lab.paper.exhibit import Exhibit, Plot, Shown
from outrider_lab.paper.exhibits.own import PAPER
from outrider_lab.paper.exhibits.routing import confidence_difference
from outrider_lab.paper.measurement import Measurement, Reports, settings
from outrider_lab.paper.setup import OWN_TREES, PaperSetup

SAMPLED = "drafters-temperature-1"
SAMPLED_ROLES = ("moa", "eagle2", "independent", "eagle3")


def _show_positions(setup: PaperSetup, reports: Reports) -> Shown:
    drafters = reports[OWN_TREES]["drafters"]
    depth = max(len(drafted["positions"]["kept"]) for drafted in drafters.values())
    rows = [
        [
            way,
            plus_minus(drafted["draft_ms_per_level"], drafted["draft_ms_per_level_ci95"], 2),
            *(f"{share:.2f}" for share in drafted["positions"]["kept"]),
        ]
        for way, drafted in drafters.items()
    ]
    columns = ("way", "ms a level", *(f"{place}" for place in range(1, depth + 1)))
    return Shown(
        tables=[
            table(
                "cost of a level, and the share of verdicts that accept its token once they accepted the one before",
                columns,
                rows,
                caption=OVER_PROMPTS,
            )
        ],
        plots=[
            Plot(
                "conditional acceptance by position",
                partial(_positions_plot, {way: drafted["positions"]["kept"] for way, drafted in drafters.items()}),
            )
        ],
    )


def _positions_plot(kept: Mapping[str, Sequence[float]], path: Path) -> None:
    with saved_figure(path, figsize=(6.5, 3.8)) as (_, axes):
        for number, (way, shares) in enumerate(kept.items()):
            places = range(1, len(shares) + 1)
            style = "o-" if number < len(COLORS) else "s--"
            axes.plot(places, shares, style, label=way, color=COLORS[number % len(COLORS)])
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("accepted, of those that accepted before")
        axes.set_ylim(0, 1.02)
        axes.legend(frameon=False, fontsize="small", ncols=2)


def calibration(prompts: Prompts, way: str) -> tuple[list[int], list[int]]:
    """Return drafted and accepted tokens by tenths of the drafter's probability of their paths, over all prompts."""
    drafted, accepted = (
        np.sum([prompt["heads"][way][f"{kind}_by_confidence"] for prompt in prompts], axis=0).tolist()
        for kind in ("drafted", "accepted")
    )
    return drafted, accepted


def calibration_error(drafted: Sequence[int], accepted: Sequence[int]) -> float:
    """Return the mean distance, weighted by tokens, of the share that is accepted from the middle of its tenth."""
    total = sum(drafted)
    return sum(
        abs(some - (tenth + 0.5) / TENTHS * count)
        for tenth, (count, some) in enumerate(zip(drafted, accepted, strict=True))
    ) / max(total, 1)


def _show_calibration(setup: PaperSetup, reports: Reports) -> Shown:
    prompts, *more = (report["prompts"] for _, report in setup.reports_of_seeds(OWN_TREES, reports))
    counts = {way: calibration(prompts, way) for way in reports[OWN_TREES]["drafters"]}
    rows = [
        [
            way,
            f"{calibration_error(drafted, accepted):.3f}",
            *(_share(prompts, way, tenth) for tenth in range(TENTHS)),
        ]
        for way, (drafted, accepted) in counts.items()
    ]
    tenths = (f"{tenth / TENTHS:.1f}-{(tenth + 1) / TENTHS:.1f}" for tenth in range(TENTHS))
    return Shown(
        tables=[
            table(
                "share of drafted tokens that is accepted, by the drafter's own probability of their path",
                ("way", "calibration error", *tenths),
                rows,
                caption=f"calibration error: mean distance from the middle of the tenth; {OVER_PROMPTS}",
            )
        ],
        claims=[
            Claim(
                f"{way}: accepted tokens have the higher confidence",
                "ours",
                confidence_difference([prompts, *more], way),
                bound=0.0,
            )
            for way in counts
        ],
        plots=[
            Plot("accepted tokens against the drafter's probability of their paths", partial(_calibration_plot, counts))
        ],
    )


def _share(prompts: Prompts, way: str, tenth: int) -> str:
    drafted, accepted = (
        [prompt["heads"][way][f"{kind}_by_confidence"][tenth] for prompt in prompts] for kind in ("drafted", "accepted")
    )
    return plus_minus(sum(accepted) / sum(drafted), ratio_interval(accepted, drafted), 2) if sum(drafted) else "-"


def _calibration_plot(counts: Mapping[str, tuple[Sequence[int], Sequence[int]]], path: Path) -> None:
    with saved_figure(path, figsize=(5.5, 5)) as (_, axes):
        axes.plot([0, 1], [0, 1], "--", color="grey", label="as often as it says")
        for number, (way, (drafted, accepted)) in enumerate(counts.items()):
            there = [tenth for tenth, count in enumerate(drafted) if count]
            style = "o-" if number < len(COLORS) else "s--"
            axes.plot(
                [(tenth + 0.5) / TENTHS for tenth in there],
                [accepted[tenth] / drafted[tenth] for tenth in there],
                style,
                label=way,
                color=COLORS[number % len(COLORS)],
            )
        axes.set_xlabel("the drafter's probability of the path")
        axes.set_ylabel("accepted")
        axes.legend(frameon=False, fontsize="small")


def _temperatures(setup: PaperSetup) -> Sequence[Measurement]:
    roles = setup.present(*SAMPLED_ROLES)
    return (setup.own_trees, setup.comparison(SAMPLED, roles, *settings(temperature=1))) if roles else ()


def _show_temperatures(setup: PaperSetup, reports: Reports) -> Shown:
    greedy, sampled = reports[OWN_TREES], reports[SAMPLED]
    rows = []
    for way, drafted in sampled["drafters"].items():
        taus = [plus_minus(one["overall"], one["tau_ci95"]["all"], 2) for one in (greedy["drafters"][way], drafted)]
        speeds = [report["speeds"][way] for report in (greedy, sampled)]
        rows.append([way, *taus, *(plus_minus(one["speedup"], one["speedup_ci95"], 2) for one in speeds)])
    columns = ("way", "tau, T = 0", "tau, T = 1", "x plain, T = 0", "x plain, T = 1")
    return Shown(
        tables=[table("greedy and sampled answers to the same prompts", columns, rows, caption=OVER_PROMPTS)],
        claims=[
            Claim(
                f"{way}: tau at T = 0 > tau at T = 1",
                "ours",
                tau_ratio(_of_both(greedy["prompts"], sampled["prompts"], way), "T = 0", "T = 1"),
            )
            for way in sampled["drafters"]
        ],
    )


def _of_both(greedy: Prompts, sampled: Prompts, way: str) -> Prompts:
    """Return the prompts, which both runs have in common, with a way's figures at both temperatures."""
    return [
        {key: {"T = 0": cold[key][way], "T = 1": hot[key][way]} for key in ("judged", "verdicts")}
        for cold, hot in zip(greedy, sampled, strict=True)
    ]


EXHIBITS = (
    Exhibit(
        name="own-positions",
        paper=PAPER,
        title="acceptance by position, and what a position costs",
        differs="the papers give one figure for all positions; trees of the drafters' own size.",
        needs=lambda setup: (setup.own_trees,),
        show=_show_positions,
    ),
    Exhibit(
        name="own-calibration",
        paper=PAPER,
        title="how often a drafter is right by its own account",
        differs="the routing report compares two means; lookup and suffix tree guess at their probabilities, and those "
        "of medusa are products of heads that do not know each other's tokens.",
        needs=lambda setup: setup.own_trees_over_seeds,
        show=_show_calibration,
    ),
    Exhibit(
        name="own-temperature",
        paper=PAPER,
        title="T = 0 and T = 1",
        differs="at T = 1 the papers try siblings one by one, each with its probability; here the target draws first "
        "and accepts what it has drawn, with the same chance in all. transformers' own ways are left out.",
        needs=_temperatures,
        show=_show_temperatures,
    ),
)
