"""Mixture of Attentions (Zimmer et al., arXiv 2410.03804), client and server: Tables 3 and 7, and Figure 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table
from outrider_lab.paper.claims import Claim, Estimate, Report, ratio_of_ratios
from outrider_lab.paper.exhibit import Exhibit, Plot, Shown
from outrider_lab.paper.exhibits.moa import PAPER
from outrider_lab.paper.measurement import Measurement, Reports, settings
from outrider_lab.paper.setup import PAPERS_CHAIN, PaperSetup

LINKS, MESSAGES = "network", "messages"
PROFILES = ("none", "paper-5g", "paper-4g")
ROLES = ("moa_tli1", "moa", "eagle2", "independent")
PAPERS_MODE, OWN_MODE = "stop-and-wait", "auto"
TABLE_3 = {  # tokens per second over 5G and 4G, tau, calls
    "moa_tli3": "25.0 14.6 4.99 20.8",
    "moa_tli1": "30.6 20.3 4.68 22.5",
    "moa": "34.1 25.1 4.30 24.1",
    "eagle2": "24.3 13.6 2.81 36.4",
    "independent": "18.3 16.1 3.16 32.4",
}
TABLE_7 = {"moa": "4M | 3A + 2 A E_kv (TLI + 1)", "eagle2": "4M | 3A + A E", "independent": "4M | 3A"}
BATCHES = "1,2,4,8"
QUICK_LOAD = settings(per_family=1, max_new_tokens=16)  # the target answers all that clients may ask before
NO_CONTROL = settings(control="false")


def network(setup: PaperSetup, roles: Sequence[str]) -> Measurement:
    """Measure every drafter in the paper's mode and ours, with controls, over the paper's links and none."""
    extent = setup.extent
    profiles = PROFILES[-1:] if setup.is_quick else PROFILES
    links = tuple(option for profile in profiles for option in ("--profile", profile))
    modes = ("--mode", PAPERS_MODE, "--mode", OWN_MODE)
    counts = settings(prompts=extent.over_links, max_new_tokens=extent.new_tokens)
    drafters = setup.drafters(roles or list(setup.roles)[:4])
    return Measurement(setup.measured_as(LINKS), ("network", *setup.ask, *links, *drafters, *modes, *counts))


def _case(report: Report, source: str, profile: str) -> Mapping[str, Any] | None:  # Any: JSON
    return next((one for one in report["cases"] if (one["drafter"], one["profile"]) == (source, profile)), None)


def _speeds(report: Report, source: str, profile: str, way: str) -> tuple[list[float], list[float]] | None:
    """Return tokens after the first and their ms, by prompt; None where that was not measured."""
    case = _case(report, source, profile)
    if case is None or way not in case["ways"]:
        return None
    rows = [row for row in case["answers"] if row["way"] == way]
    return [row["decoded_tokens"] for row in rows], [row["decode_ms"] for row in rows]


def _faster(
    setup: PaperSetup, reports: Reports, profile: str, above: tuple[str, str], below: tuple[str, str]
) -> Estimate | None:
    """Return how many times as fast one (role, way) is as another over a link, over the same prompts and all seeds."""
    measured = [
        [_speeds(report, one.source(role), profile, way) for role, way in (above, below)]
        for one, report in setup.reports_of_seeds(LINKS, reports)
    ]
    both = [(mine, its) for mine, its in measured if mine is not None and its is not None]
    measures = [[seed[way][part] for seed in both] for way in (0, 1) for part in (0, 1)]
    return ratio_of_ratios(*measures, seeds=len(both))


def _links_table(report: Report) -> ResultTable:
    rows = []
    for source, way in dict.fromkeys((case["drafter"], way) for case in report["cases"] for way in case["ways"]):
        cases = {case["profile"]: case["ways"].get(way) for case in report["cases"] if case["drafter"] == source}
        cells = [_figure(cases.get(profile), "tokens_per_second", 1) for profile in PROFILES]
        last = cases.get(PROFILES[-1])
        more = [
            _figure(last, key, digits)
            for key, digits in (
                ("mean_acceptance_length", 2),
                ("target_calls", 1),
                ("ttft_ms", 0),
                ("bytes_up_per_token", 0),
                ("bytes_down_per_token", 0),
            )
        ]
        rows.append([source, way, *cells, *more])
    columns = (
        "drafter",
        "way",
        "no link",
        "5G",
        "4G",
        "tau",
        "calls an answer",
        "TTFT ms (4G)",
        "bytes up",
        "bytes down",
    )
    return table(
        "tokens/s after the first ones",
        columns,
        rows,
        keys=2,
        caption=f"tau, calls and bytes a token over 4G; {OVER_PROMPTS}",
    )


def _figure(figures: Mapping[str, Any] | None, key: str, digits: int) -> str:  # Any: JSON
    return "-" if figures is None else plus_minus(figures[key], figures.get(f"{key}_ci95"), digits)


def _show_links(setup: PaperSetup, reports: Reports) -> Shown:
    report = reports[LINKS]
    claims = [
        Claim(
            f"{link}, stop-and-wait: {above} > {below}",
            papers,
            _faster(setup, reports, link, (above, PAPERS_MODE), (below, PAPERS_MODE)),
        )
        for link, above, below, papers in (
            ("paper-5g", "moa", "eagle2", "34.1 > 24.3 tokens/s"),
            ("paper-4g", "moa", "eagle2", "25.1 > 13.6 tokens/s"),
            ("paper-5g", "moa", "independent", "34.1 > 18.3 tokens/s"),
            ("paper-4g", "moa", "independent", "25.1 > 16.1 tokens/s"),
            ("paper-4g", "moa", "moa_tli1", "25.1 > 20.3 tokens/s"),
        )
    ]
    first = setup.present(*ROLES)[:1]
    claims += [
        Claim(
            f"4G: the paper's mode with {role} > the target's own stream",
            "not compared",
            _faster(setup, reports, "paper-4g", (role, PAPERS_MODE), (role, "stream")),
        )
        for role in first
    ]
    claims += [
        Claim(
            f"4G: mode auto with {role} > the target's own stream",
            "ours",
            _faster(setup, reports, "paper-4g", (role, OWN_MODE), (role, "stream")),
        )
        for role in first
    ]
    papers = table(
        "Table 3: HumanEval, Llama-3-8B-Instruct, two devices",
        ("way", "5G", "4G", "tau", "calls"),
        [[role, *cells.split()] for role, cells in TABLE_3.items()],
    )
    wrong = sum(one["mismatches"] for _, one in setup.reports_of_seeds(LINKS, reports))
    return Shown(
        [_links_table(report)],
        [papers],
        claims,
        notes=[f"{wrong} answers differ from the target's own" if wrong else "all answers are the target's own"],
    )


def _messages(setup: PaperSetup) -> Measurement:
    drafters = setup.drafters(setup.present("moa_tli1", "moa", "eagle2", "independent"))
    counts = settings(table7="true", prompts=setup.extent.over_links, max_new_tokens=setup.extent.new_tokens)
    return Measurement(MESSAGES, ("network", *setup.ask, *drafters, *counts), timed=False)


def _show_messages(setup: PaperSetup, reports: Reports) -> Shown:
    rows = [
        [
            one["drafter"],
            one["codec"],
            *(f"{one[key]:.{digits}f}" for key, digits in (("nodes", 1), ("accepted", 2))),
            *(
                f"{one[key]:.0f}"
                for key in ("paper_up", "draft", "paper_down", "verdict", "features", "bytes_down_per_token")
            ),
        ]
        for one in reports[MESSAGES]["messages"]
    ]
    columns = (
        "way",
        "codec",
        "M",
        "A",
        "up, computed",
        "draft",
        "down, computed",
        "verdict",
        "features",
        "down a token",
    )
    formulas = [[role, *text.split(" | ")] for role, text in TABLE_7.items()]
    return Shown(
        [
            table(
                "bytes a message, computed by the paper's formulas in one byte a value, and captured",
                columns,
                rows,
                keys=2,
            )
        ],
        [
            table(
                "Table 7: bytes before quantization",
                ("way", "up", "down"),
                formulas,
                caption="M: nodes of the tree, A: accepted tokens, E, E_kv: widths",
            )
        ],
    )


def batches(setup: PaperSetup, role: str) -> Measurement:
    """Load a server with clients that draft with the drafter of a role; with the first role also with the stream."""
    clients = ("--clients", "2", *QUICK_LOAD) if setup.is_quick else ("--clients", BATCHES)
    options = (*clients, "--clients-kind", "real", "--seconds", str(setup.extent.seconds))
    only_once = () if role == "moa" and not setup.is_quick else NO_CONTROL
    return Measurement(
        f"batches-{role}", ("load", *setup.ask, *options, *only_once, "--drafter", setup.roles[role], *PAPERS_CHAIN)
    )


def all_batches(setup: PaperSetup) -> Sequence[Measurement]:
    """Return the measurements of all roles, in a quick report of one: every one starts a server."""
    roles = setup.present("moa", "eagle2", "independent")
    return tuple(batches(setup, role) for role in (roles[:1] if setup.is_quick else roles))


def _show_batches(setup: PaperSetup, reports: Reports) -> Shown:
    runs = {
        name.removeprefix("batches-"): {run["num_clients"]: run for run in report["runs"]}
        for name, report in reports.items()
    }
    clients = list(next(iter(runs.values())))
    rows = [[role, *(f"{by_count[count]['tokens_per_s']:.0f}" for count in clients)] for role, by_count in runs.items()]
    streams = {run["num_clients"]: run for report in reports.values() for run in report.get("streams", ())}
    if streams:
        rows.append(
            ["stream", *(f"{streams[count]['tokens_per_s']:.0f}" if count in streams else "-" for count in clients)]
        )
    wrong = sum(run["wrong"] for by_count in runs.values() for run in by_count.values())
    return Shown(
        [table("tokens/s of all clients together", ("way", *map(str, clients)), rows)],
        plots=[Plot("tokens/s by number of clients", partial(_batches_plot, runs, streams))],
        notes=[f"{wrong} WRONG ANSWERS: this is a defect."] if wrong else [],
    )


def _batches_plot(
    runs: Mapping[str, Mapping[int, Mapping[str, Any]]], streams: Mapping[int, Mapping[str, Any]], path: Path
) -> None:
    with saved_figure(path, figsize=(6, 3.6)) as (_, axes):
        for number, (name, by_count) in enumerate({**runs, "stream": streams}.items()):
            axes.plot(
                list(by_count),
                [run["tokens_per_s"] for run in by_count.values()],
                "o-",
                label=name,
                color=COLORS[number],
            )
        axes.set_xlabel("clients")
        axes.set_ylabel("tokens/s")
        axes.legend(frameon=False)


EXHIBITS = (
    Exhibit(
        name="moa-table-3",
        paper=PAPER,
        title="Table 3: speed over 5G and 4G",
        differs="the paper's links, emulated; drafter and target share this machine's cores. A pass of the embedded "
        "target is far shorter than a round trip, so that waiting for each verdict weighs more than in the paper.",
        needs=lambda setup: setup.over_seeds(network, ROLES),
        show=_show_links,
    ),
    Exhibit(
        name="moa-table-7",
        paper=PAPER,
        title="Table 7: bytes of messages, computed and captured",
        differs="captured: protobuf messages with token ids and parents packed.",
        needs=lambda setup: (_messages(setup),),
        show=_show_messages,
    ),
    Exhibit(
        name="moa-figure-4",
        paper=PAPER,
        title="Figure 4: throughput by number of clients",
        differs="clients with real drafters share the processor with the server; the paper has all on one GPU (vLLM).",
        needs=all_batches,
        show=_show_batches,
    ),
)
