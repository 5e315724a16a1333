"""What no paper measures, client and server: late and coarse features, modes, clients per server, first tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table
from outrider_lab.paper.claims import Claim, Estimate, Report
from outrider_lab.paper.exhibit import Exhibit, Plot, Shown
from outrider_lab.paper.exhibits.moa_links import LINKS, NO_CONTROL, PROFILES, QUICK_LOAD, ROLES, all_batches, network
from outrider_lab.paper.measurement import KEPT, Measurement, Reports, as_measured, settings
from outrider_lab.paper.setup import PaperSetup
from outrider_lab.studies.staleness import EXACT, StalenessStudy
from outrider_lab.virtual.study import SweepStudy
from outrider_lab.virtual.sweep import plot_sweep

PAPER = "Ours"
STALENESS, MODES, CAPACITY = "staleness", "modes", "clients"
LATE_ROLES = ("moa", "eagle2")
KEEPS, EQUIVALENT = 0.9, 0.03  # shares of tau
BOUNDS_MS = (20, 50, 100, 200)
TAPE = f"{KEPT}.tape.json.gz"


def _staleness(setup: PaperSetup) -> Sequence[Measurement]:
    roles = setup.present(*LATE_ROLES)
    extent = setup.extent
    counts = settings(per_family=extent.per_family, max_new_tokens=extent.new_tokens)
    drafters = setup.drafters(roles[:1] if setup.is_quick else roles)
    return (Measurement(STALENESS, ("staleness", *setup.ask, *drafters, *counts), timed=False),) if roles else ()


def _show_staleness(setup: PaperSetup, reports: Reports) -> Shown:
    report = reports[STALENESS]
    claims = []
    for drafter, by_shape in report["drafters"].items():
        late = _share(by_shape["tree"], verdicts=1, coding=EXACT)
        claims.append(Claim(f"{drafter}: features a verdict late keep {KEEPS:.0%} of tau", "ours", late, bound=KEEPS))
        coarse = _share(by_shape["tree"], verdicts=0, coding="int8")
        claims.append(
            Claim(
                f"{drafter}: int8 features are within {EQUIVALENT:.0%} of float32",
                "ours",
                coarse,
                bound=1 - EQUIVALENT,
                ceiling=1 + EQUIVALENT,
            )
        )
    measured = as_measured(StalenessStudy, report)
    return Shown(
        tables=StalenessStudy.tables(measured),
        claims=claims,
        plots=[Plot("tau with late and with coarse features", partial(StalenessStudy.plot, measured))],
    )


def _share(
    measured: Sequence[Mapping[str, Any]],
    *,
    verdicts: int,
    coding: str,  # Any: JSON
) -> Estimate | None:
    """Return the share of tau that is kept; None for a drafter without features."""
    wanted = {"lag": {"tokens": 0, "verdicts": verdicts}, "coding": coding}
    found = next((one["overall"] for one in measured if one["cell"] == wanted), None)
    return None if found is None else Estimate(found["share"], (found["low"], found["high"]))


def _modes(setup: PaperSetup) -> Sequence[Measurement]:
    """Tape a drafter's drafts, and replay them over a grid of round trips and times of a pass."""
    extent = setup.extent
    role = next(iter(setup.present(*ROLES)), None)
    if role is None:
        return ()
    limit = settings(max_new_tokens=extent.new_tokens)
    prompts = (*settings(prompts=extent.over_links), *limit)
    grid = settings(rtt="5,80", verify="6", thin="0") if setup.is_quick else settings(thin="0,0.25")
    recorded = ("record", "--tape", TAPE, *setup.ask, *setup.drafters([role]), *prompts)
    return (Measurement(MODES, ("sweep", "--tape", TAPE, *grid, *limit), first=recorded, timed=False),)


def _show_modes(setup: PaperSetup, reports: Reports) -> Shown:
    report = as_measured(SweepStudy, reports[MODES])
    return Shown(
        tables=list(SweepStudy.tables(report)),
        plots=[
            Plot(
                "the fastest mode, and how many times the stream; ~: not beyond the second's 95 % interval",
                partial(plot_sweep, report.points, "virtual time"),
            )
        ],
        notes=[*SweepStudy.notes(report), *(f"{line}: THIS IS A DEFECT" for line in SweepStudy.failures(report))],
    )


def _capacity(setup: PaperSetup) -> Measurement:
    """Load a server with clients that draft from the known answer, which costs next to nothing."""
    clients = ("1,2", *QUICK_LOAD) if setup.is_quick else ("1,2,4,8,16,32",)
    options = ("--clients", *clients, "--seconds", str(setup.extent.seconds), *NO_CONTROL)
    return Measurement(CAPACITY, ("load", *setup.ask, *options))


def _show_capacity(setup: PaperSetup, reports: Reports) -> Shown:
    runs = reports[CAPACITY]["runs"]
    rows = [[f"{bound}", f"{clients_within(runs, bound) or 'none'}"] for bound in BOUNDS_MS]
    latencies = [
        [
            f"{run['num_clients']}",
            *(f"{run['verdict'][p]:.1f}" for p in ("p50", "p95", "p99")),
            f"{run['tokens_per_s']:.0f}",
        ]
        for run in runs
    ]
    most = runs[-1]["num_clients"]
    wrong = sum(run["wrong"] for run in runs)
    return Shown(
        tables=[
            table(
                "clients of one server whose verdicts come in time",
                ("95th percentile of the verdict, ms, at most", "clients"),
                rows,
                caption=f"of the numbers that were tried, up to {most}",
            ),
            table("verdicts", ("clients", "p50, ms", "p95", "p99", "tokens/s"), latencies),
        ],
        notes=[f"{wrong} WRONG ANSWERS: this is a defect."] if wrong else [],
    )


def clients_within(runs: Sequence[Mapping[str, Any]], bound_ms: float) -> int:  # Any: JSON
    """Return the most clients up to which the 95th percentile of the verdict stays within a bound; 0: none."""
    within = 0
    for run in sorted(runs, key=lambda one: one["num_clients"]):
        if run["verdict"]["p95"] > bound_ms:
            break
        within = run["num_clients"]
    return within


def _show_pareto(setup: PaperSetup, reports: Reports) -> Shown:
    runs = {name.removeprefix("batches-"): report["runs"] for name, report in reports.items()}
    streams = [run for report in reports.values() for run in report["streams"]]
    points = {
        way: {run["num_clients"]: (run["tokens_per_s"] / run["num_clients"], run["tokens_per_s"]) for run in its}
        for way, its in {**runs, "stream": streams}.items()
        if its
    }
    best = pareto([point for of in points.values() for point in of.values()])
    rows = [
        [way, f"{clients}", f"{user:.1f}", f"{server:.0f}", "yes" if (user, server) in best else ""]
        for way, of in points.items()
        for clients, (user, server) in of.items()
    ]
    return Shown(
        tables=[
            table(
                "what a user gets, and what the server gives",
                ("way", "clients", "user's tokens/s", "server's tokens/s", "none better in both"),
                rows,
                keys=2,
            )
        ],
        plots=[Plot("tokens/s of a user against those of the server", partial(_pareto_plot, points))],
    )


def pareto(points: Sequence[tuple[float, float]]) -> set[tuple[float, float]]:
    """Return the points that no other one is as good as in both, and better in one."""
    return {one for one in points if not any(one != other and all(map(float.__ge__, other, one)) for other in points)}


def _pareto_plot(points: Mapping[str, Mapping[int, tuple[float, float]]], path: Path) -> None:
    with saved_figure(path, figsize=(6, 4)) as (_, axes):
        for number, (way, of) in enumerate(points.items()):
            users, server = zip(*of.values(), strict=True)
            axes.plot(users, server, "o-", label=way, color=COLORS[number % len(COLORS)])
            for clients, place in of.items():
                axes.annotate(f"{clients}", place, textcoords="offset points", xytext=(4, 4), fontsize="small")
        axes.set_xlabel("tokens/s of a user")
        axes.set_ylabel("tokens/s of the server")
        axes.legend(frameon=False)


def _show_first_tokens(setup: PaperSetup, reports: Reports) -> Shown:
    report = reports[LINKS]
    return Shown(
        tables=[_link_table(report, "ttft_ms", "time to the first token, ms"), _bytes_table(report)],
        claims=[
            Claim(
                f"{case['profile']}: auto with {case['drafter']} begins within 1.5 times the stream's time",
                "ours",
                _beginning(case["ways"]["auto"]),
                bound=1 / 1.5,
            )
            for case in report["cases"]
            if case["profile"] == PROFILES[-1] and "auto" in case["ways"]
        ],
    )


def _beginning(figures: Mapping[str, Any]) -> Estimate | None:  # Any: JSON
    """Return the stream's time to the first token over a way's."""
    ratio, interval = figures["ttft_ratio_to_stream"], figures["ttft_ratio_to_stream_ci95"]
    if not ratio:
        return None
    return Estimate(1 / ratio, None if interval is None else (1 / interval[1], 1 / interval[0]))


def _link_table(report: Report, key: str, title: str) -> ResultTable:
    rows = []
    for drafter, way in dict.fromkeys((case["drafter"], way) for case in report["cases"] for way in case["ways"]):
        cells = {
            case["profile"]: plus_minus(case["ways"][way][key], case["ways"][way].get(f"{key}_ci95"), 0)
            for case in report["cases"]
            if case["drafter"] == drafter and way in case["ways"]
        }
        rows.append([drafter, way, *(cells.get(profile, "-") for profile in PROFILES)])
    return table(title, ("drafter", "way", *PROFILES), rows, keys=2, caption=OVER_PROMPTS)


def _bytes_table(report: Report) -> ResultTable:
    keys = ("bytes_up_per_token", "bytes_down_per_token", "link_bytes_up_per_token", "link_bytes_down_per_token")
    rows = [
        [case["drafter"], way, *(plus_minus(figures[key], None, 0) for key in keys)]
        for case in report["cases"]
        if case["profile"] == PROFILES[-1]
        for way, figures in case["ways"].items()
    ]
    columns = ("drafter", "way", "up", "down", "on the link, up", "down")
    return table(f"bytes a token, {PROFILES[-1]}", columns, rows, keys=2)


EXHIBITS = (
    Exhibit(
        name="own-staleness",
        paper=PAPER,
        title="late features and coarse ones",
        differs="no paper sends features late; replays of known answers, which accept what the real loop accepts.",
        needs=_staleness,
        show=_show_staleness,
    ),
    Exhibit(
        name="own-modes",
        paper=PAPER,
        title="the fastest mode by round trip and time of a pass",
        differs="virtual time: drafts are taped, links and passes computed, and programs take no time of their own.",
        needs=_modes,
        show=_show_modes,
    ),
    Exhibit(
        name="own-clients",
        paper=PAPER,
        title="clients of one server within a bound on latency",
        differs="clients draft from the known answer at the default tau, so that the server alone is loaded; "
        "no link, clients on cores of their own.",
        needs=lambda setup: (_capacity(setup),),
        show=_show_capacity,
    ),
    Exhibit(
        name="own-pareto",
        paper=PAPER,
        title="tokens of a user against tokens of the server",
        differs="clients with real drafters share this machine's cores with each other; figures of single runs.",
        needs=all_batches,
        show=_show_pareto,
    ),
    Exhibit(
        name="own-first-token",
        paper=PAPER,
        title="time to the first token, and bytes",
        differs="the paper gives neither; bytes on the link count headers and repetitions, where it can count them.",
        needs=lambda setup: setup.over_seeds(network, ROLES)[:1],
        show=_show_first_tokens,
    ),
)
