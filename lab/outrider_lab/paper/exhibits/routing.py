"""The routing report (Routing, Confidence, Verification, and Routing Overhead in EAGLE and HASS): its four tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.core.tables import ResultTable, table
from outrider_lab.paper.claims import (
    Claim,
    Estimate,
    Prompts,
    difference_of_ratios,
    of_family,
    speed_ratio,
    tau_ratio,
)
from outrider_lab.paper.exhibit import Exhibit, Plot, Shown
from outrider_lab.paper.measurement import Measurement, Reports, as_measured
from outrider_lab.paper.setup import PaperSetup
from outrider_lab.studies.routing import (
    RoutingReport,
    RoutingStudy,
    confidence_table,
    cost_table,
    routings,
    speed_table,
    tau_table,
)

PAPER = "Routing report"
SYSTEMS = {"EAGLE": ("eagle2_math", "eagle2_chat"), "HASS": ("hass_math", "hass_chat")}  # the two heads' roles
BENCHMARKS = ("mt_bench", "gsm8k", "math_500", "svamp")
MATH, CHAT = "math", "chat"
EQUIVALENT = 0.05  # a share of tau; the report's routers are at most 3.5 % below the better head
TABLES_1_2 = {  # tau by benchmark
    "EAGLE": {
        "MathInstruct": "2.541 4.923 5.284 4.812",
        "ShareGPT": "3.606 3.835 3.968 3.778",
        "both, by confidence": "3.632 4.751 5.195 4.717",
        "Δ vs best single": "+0.026 -0.172 -0.089 -0.095",
    },
    "HASS": {
        "MathInstruct": "2.371 4.960 5.420 4.935",
        "ShareGPT": "3.889 4.165 3.975 4.092",
        "both, by confidence": "3.934 4.932 5.377 4.879",
        "Δ vs best single": "+0.044 -0.028 -0.043 -0.056",
    },
}
TABLE_3 = {  # mean accepted, mean rejected, difference, tokens accepted, rejected
    "EAGLE MathInstruct": "0.534534 0.046742 0.487792 395728 6255165",
    "EAGLE ShareGPT": "0.496855 0.053631 0.443224 378471 7630130",
    "HASS MathInstruct": "0.441771 0.178571 0.263200 281528 45484",
    "HASS ShareGPT": "0.428201 0.224287 0.203914 295899 55220",
}
TABLE_4 = {"EAGLE": "53.15 78.69 89.06 83.86", "HASS": "58.31 82.98 92.62 87.86"}  # tokens/s of both heads
OVERHEAD = {"EAGLE": "214.99 +100 %", "HASS": "206.45 +100 %"}  # section 8: extra head calls per 1,000 tokens
ON_CHAT = {"EAGLE": "3.632 > 3.606 (mt_bench)", "HASS": "3.934 > 3.889 (mt_bench)"}
ON_MATH = {"EAGLE": "ratios .965 .983 .980", "HASS": "ratios .994 .992 .989"}
CONFIDENCE = {"EAGLE": ("0.535 > 0.047", "0.497 > 0.054"), "HASS": ("0.442 > 0.179", "0.428 > 0.224")}


def _measurements(setup: PaperSetup) -> dict[str, Measurement]:
    """Return a measurement for each system whose two heads are there."""
    return {
        system: Measurement(
            f"routing-{system.lower()}",
            ("routing", *(word for role in roles for word in ("--heads", setup.roles[role])), *setup.ask_sweep),
        )
        for system, roles in SYSTEMS.items()
        if len(setup.present(*roles)) == len(roles)
    }


def _needs(setup: PaperSetup) -> Sequence[Measurement]:
    return tuple(_measurements(setup).values())


def _measured(setup: PaperSetup, reports: Reports) -> dict[str, tuple[RoutingReport, Prompts]]:
    """Return the report and its prompts by system."""
    found = {system: reports[one.name] for system, one in _measurements(setup).items()}
    return {
        system: (as_measured(RoutingStudy, report), report["comparison"]["prompts"]) for system, report in found.items()
    }


def _router(report: RoutingReport) -> str:
    """Return the way that routes as the report does: one head after another, no gate."""
    return next(iter(routings(report.gate)))


def _own_router(report: RoutingReport) -> str:
    """Return ours: both heads in one batch, gated."""
    return list(routings(report.gate))[-1]


def _against_better(report: RoutingReport, prompts: Prompts, family: str) -> Estimate | None:
    """Return the ratio of the router's tau to that of the head which is better on a family; None without it."""
    asked = of_family(prompts, family)
    taus = {way: report.comparison.drafters[way].tau.get(family, 0.0) for way in report.alone}
    return tau_ratio(asked, _router(report), max(taus, key=lambda way: taus[way]))


def _show_acceptance(setup: PaperSetup, reports: Reports) -> Shown:
    measured = _measured(setup, reports)
    claims = []
    for system, (report, prompts) in measured.items():
        equivalence = {"bound": 1 - EQUIVALENT, "ceiling": 1 + EQUIVALENT}
        claims += [
            Claim(
                f"{system}, tau on chat: routed > the better head",
                ON_CHAT[system],
                _against_better(report, prompts, CHAT),
            ),
            Claim(
                f"{system}, tau on math: routed is within {EQUIVALENT:.0%} of the better head",
                ON_MATH[system],
                _against_better(report, prompts, MATH),
                **equivalence,
            ),
            Claim(
                f"{system}, tau: gated and in one batch is within {EQUIVALENT:.0%} of the report's router",
                "ours",
                tau_ratio(prompts, _own_router(report), _router(report)),
                **equivalence,
            ),
        ]
    wrong = {
        f"{system}, {way}": drafted.mismatches
        for system, (report, _) in measured.items()
        for way, drafted in report.comparison.drafters.items()
        if drafted.mismatches
    }
    return Shown(
        tables=[_of_system(system, tau_table(report)) for system, (report, _) in measured.items()],
        papers=[
            table(
                f"Table {number}: {system}, tau = new tokens / steps",
                ("head", *BENCHMARKS),
                [[head, *cells.split()] for head, cells in by_head.items()],
            )
            for number, (system, by_head) in enumerate(TABLES_1_2.items(), 1)
        ],
        claims=claims,
        notes=[f"{way}: {count} ANSWERS DIFFER: this is a defect." for way, count in wrong.items()],
    )


def _show_confidence(setup: PaperSetup, reports: Reports) -> Shown:
    measured = _measured(setup, reports)
    return Shown(
        tables=[_of_system(system, confidence_table(report)) for system, (report, _) in measured.items()],
        papers=[
            table(
                "Table 3: confidence of drafted tokens, all benchmarks",
                ("head", "accepted", "rejected", "difference", "tokens accepted", "rejected"),
                [[head, *cells.split()] for head, cells in TABLE_3.items()],
            )
        ],
        claims=[
            Claim(
                f"{system}, {way}: accepted tokens have the higher confidence",
                papers,
                confidence_difference([prompts], way),
                bound=0.0,
            )
            for system, (report, prompts) in measured.items()
            for way, papers in zip(report.alone, CONFIDENCE[system], strict=True)
        ],
    )


def confidence_difference(seeds: Sequence[Prompts], way: str) -> Estimate | None:
    """Return how much more probable a drafter takes accepted tokens to be than rejected ones; None without both.

    `seeds`: the same prompts with drafters of several trainings; those without this one do not count.
    """
    uses = [[prompt["heads"][way] for prompt in prompts] for prompts in seeds if way in prompts[0]["heads"]]
    measures = [
        measure
        for kind in ("accepted", "rejected")
        for measure in (
            [[use["confidence"][kind] * use[f"{kind}_tokens"] for use in of_seed] for of_seed in uses],
            [[use[f"{kind}_tokens"] for use in of_seed] for of_seed in uses],
        )
    ]
    return difference_of_ratios(*measures)


def _show_speed(setup: PaperSetup, reports: Reports) -> Shown:
    measured = _measured(setup, reports)
    return Shown(
        tables=[
            _of_system(system, make(report))
            for system, (report, _) in measured.items()
            for make in (speed_table, cost_table)
        ],
        papers=[
            table(
                "Table 4: tokens/s of the routed pairs",
                ("system", *BENCHMARKS),
                [[system, *cells.split()] for system, cells in TABLE_4.items()],
            ),
            table(
                "Section 8.2: what the second head costs",
                ("system", "extra head calls per 1000 tokens", "of draft calls"),
                [[system, *cells.split(" ", 1)] for system, cells in OVERHEAD.items()],
            ),
        ],
        claims=[
            Claim(
                f"{system}, speed: gated and in one batch > the report's router",
                "ours",
                speed_ratio(prompts, _own_router(report), _router(report)),
            )
            for system, (report, prompts) in measured.items()
        ],
        plots=[
            Plot(f"{system}: time to draft a cycle", partial(_cost_plot, _draft_ms(report)))
            for system, (report, _) in measured.items()
        ],
    )


def _draft_ms(report: RoutingReport) -> dict[str, float]:
    return {way: cost.draft_ms for way, cost in report.costs.items()}


def _cost_plot(costs: Mapping[str, float], path: Path) -> None:
    with saved_figure(path, figsize=(7, 3)) as (_, axes):
        axes.barh(list(costs), list(costs.values()), color=COLORS[0])
        axes.invert_yaxis()
        axes.set_xlabel("ms")


def _of_system(system: str, one: ResultTable) -> ResultTable:
    return table(f"{system}: {one.title}", one.columns, one.rows, keys=one.keys, caption=one.caption)


_HEADS = "heads trained on the corpus' math and on its chat instead of MathInstruct and ShareGPT, which makes each of "
EXHIBITS = (
    Exhibit(
        name="routing-tables-1-2",
        paper=PAPER,
        title="Tables 1 and 2: each head alone and both, routed by confidence",
        differs=_HEADS + "them nearly useless for the other's text; the report's router is `confidence, one after "
        "another`, the batched and gated ones are ours; HASS heads do not ship: `paper train` trains them.",
        needs=_needs,
        show=_show_acceptance,
    ),
    Exhibit(
        name="routing-table-3",
        paper=PAPER,
        title="Table 3: confidence of accepted and of rejected tokens",
        differs="all nodes of the verified trees, for HASS too, where the report has fewer rejected than accepted "
        "tokens; confidence is the probability of a token's whole path, as in the report's router.",
        needs=_needs,
        show=_show_confidence,
    ),
    Exhibit(
        name="routing-table-4",
        paper=PAPER,
        title="Table 4: speed of the routed pair, and what the second head costs",
        differs="all ways answer the same prompts, so that the cost of routing is measured, which the report could "
        "not do; its head calls are our trees, and a batch of both heads needs one pass for two trees.",
        needs=_needs,
        show=_show_speed,
    ),
)
