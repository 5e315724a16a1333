"""Mixture of Attentions (Zimmer et al., arXiv 2410.03804), what answers are worth: Tables 4 and 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.core.stats import share_interval
from outrider_bench.core.tables import plus_minus, table
from outrider_lab.paper.claims import Claim, Estimate, share_difference
from outrider_lab.paper.exhibit import Exhibit, Plot, Shown
from outrider_lab.paper.exhibits.moa import PAPER
from outrider_lab.paper.exhibits.moa_links import ROLES
from outrider_lab.paper.measurement import Measurement, Reports, settings
from outrider_lab.paper.setup import PaperSetup

QUALITY, EXACT = "quality", "exact"
TABLE_4 = {  # percent after 1, 10, 25, 50 and all tokens
    "moa_tli3": "2.48 11.18 18.01 31.67 45.9",
    "moa_tli1": "3.10 10.55 21.11 30.43 45.9",
    "moa": "2.48 9.31 19.20 29.81 45.9",
    "eagle2": "0 8.07 16.77 27.32 45.9",
    "independent": "0 6.21 18.01 27.95 45.9",
    "stop": "0 5.59 16.77 27.32 45.9",
}
TABLE_8 = (
    ("vanilla", "62.5", "80", "0.3071"),
    ("moa_tli3", "62.5", "80", "0.3053"),
    ("moa_tli1", "62.5", "81.25", "0.3068"),
    ("moa", "62.5", "80", "0.3070"),
    ("eagle2", "62.5", "81.25", "0.3062"),
    ("independent", "62.5", "80", "0.3064"),
)


def _quality(setup: PaperSetup, roles: Sequence[str]) -> Measurement:
    extent = setup.extent
    counts = settings(code=extent.code, per_family=max(extent.per_family, 2), tau_per_family=1)
    options = (*(counts if setup.is_embedded else ()), *settings(max_new_tokens=2 * extent.new_tokens))
    asked = (*setup.ask, *setup.drafters(roles), *options)
    return Measurement(setup.measured_as(QUALITY), ("eval", *asked), timed=False)


def _show_outage(setup: PaperSetup, reports: Reports) -> Shown:
    report = reports[QUALITY]
    code = report["scores"]["code"]["total"]
    cuts = list(report["stop"])
    shares = {name: one["outage"] for name, one in report["drafters"].items()} | {"stop": report["stop"]}
    alone = report["target_alone"]
    rows = [
        [name, *(_percent(share, code) for share in by_cut.values()), _percent(alone, code)]
        for name, by_cut in shares.items()
    ]
    claims = [
        Claim(
            f"success after {cut} tokens: {above} > {below}",
            papers,
            _more_right(setup, reports, cut, above, below),
            bound=0.0,
        )
        for cut, above, below, papers in (
            ("1", "moa", "stop", "2.5 > 0 %"),
            ("10", "moa", "stop", "9.3 > 5.6 %"),
            ("25", "moa", "stop", "19.2 > 16.8 %"),
            ("10", "moa", "eagle2", "9.3 > 8.1 %"),
            ("25", "moa", "eagle2", "19.2 > 16.8 %"),
            ("10", "moa", "independent", "9.3 > 6.2 %"),
            ("25", "moa_tli1", "moa", "21.1 > 19.2 %"),
        )
    ]
    return Shown(
        tables=[
            table(
                f"code right, in %, of {code}; link dead after n tokens",
                ("n", *cuts, "never"),
                rows,
                caption="±: 95 % interval (Wilson)",
            )
        ],
        papers=[
            table(
                "Table 4: HumanEval, pass@1 in %",
                ("B", "1", "10", "25", "50", "never"),
                [[role, *cells.split()] for role, cells in TABLE_4.items()],
            )
        ],
        claims=claims,
        plots=[Plot("code right after the link has died", partial(_outage_plot, shares, alone))],
    )


def _percent(share: float, of: int) -> str:
    interval = share_interval(round(share * of), of)
    return plus_minus(100 * share, None if interval is None else (100 * interval[0], 100 * interval[1]), 1)


def _more_right(setup: PaperSetup, reports: Reports, cut: str, above: str, below: str) -> Estimate | None:
    """Return how many more answers are right that one role, or `stop`, ends than another does, over all seeds."""
    measured = []
    for one, report in setup.reports_of_seeds(QUALITY, reports):
        passed = {name: drafter["passed"] for name, drafter in report["drafters"].items()} | {"stop": report["stopped"]}
        measured.append([passed.get(one.source(role), {}).get(cut, ()) for role in (above, below)])
    both = [(mine, its) for mine, its in measured if mine and its]
    return share_difference([mine for mine, _ in both], [its for _, its in both])


def _outage_plot(shares: Mapping[str, Mapping[str, float]], alone: float, path: Path) -> None:
    with saved_figure(path, figsize=(6, 3.6)) as (_, axes):
        for number, (name, by_cut) in enumerate(shares.items()):
            style = "x--" if name == "stop" else "o-"
            axes.plot(
                [int(cut) for cut in by_cut],
                [100 * share for share in by_cut.values()],
                style,
                label=name,
                color=COLORS[number % len(COLORS)],
            )
        axes.axhline(100 * alone, color="black", linewidth=1, label="never")
        axes.set_xlabel("tokens received before the link died")
        axes.set_ylabel("code right, %")
        axes.legend(frameon=False)


def _exactness(setup: PaperSetup) -> Measurement:
    counts = settings(prompts=6 * setup.extent.per_family, max_new_tokens=setup.extent.new_tokens)
    return Measurement(EXACT, ("exact", *setup.ask, *setup.drafters(setup.present(*ROLES)), *counts), timed=False)


def _show_quality(setup: PaperSetup, reports: Reports) -> Shown:
    scores, exact = reports[QUALITY]["scores"], reports[EXACT]
    right = [
        [family, f"{score['passed']}", f"{score['total']}", _percent(score["passed"] / score["total"], score["total"])]
        for family, score in scores.items()
    ]
    differing = {way: len(one["departures"]) for way, one in exact["ways"].items()}
    rows = [[way, f"{count}", f"{exact['questions']}"] for way, count in differing.items()]
    return Shown(
        tables=[
            table("right answers of the target alone", ("family", "right", "of", "%"), right),
            table("answers that differ from those of transformers' generate", ("way", "answers", "of"), rows),
        ],
        papers=[
            table(
                "Table 8: Llama-3-8B-Instruct, float16", ("way", "HumanEval, %", "GSM8K, %", "CNN/DM, Rouge-L"), TABLE_8
            )
        ],
        notes=[
            "ANSWERS DIFFER: this is a defect."
            if any(differing.values())
            else "No answer differs: every drafter has the target's own score."
        ],
    )


EXHIBITS = (
    Exhibit(
        name="moa-table-4",
        paper=PAPER,
        title="Table 4: right answers after the link has died",
        differs="the corpus' code instead of HumanEval; its answers are shorter: 40 tokens stand for the paper's 50.",
        needs=lambda setup: setup.over_seeds(_quality, ROLES) if setup.is_embedded else (),
        show=_show_outage,
    ),
    Exhibit(
        name="moa-table-8",
        paper=PAPER,
        title="Table 8: quality",
        differs="answers are compared token for token, in float32, where the paper compares scores in float16; the "
        "corpus' families, of which programs, numbers, entities and wording are checked.",
        needs=lambda setup: (setup.over_seeds(_quality, ROLES)[0], _exactness(setup)) if setup.is_embedded else (),
        show=_show_quality,
    ),
)
