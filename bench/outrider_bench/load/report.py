"""Tables and the plot of load runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.core.tables import ResultTable, table
from outrider_bench.load.control import GenerateResult
from outrider_bench.load.metrics import LatencyPercentiles, LoadRun
from outrider_bench.load.options import NO_LINK

_MIB = 2**20
_PASS_COLUMNS = ("tau", "nodes", "sessions/pass", "known", "p99 max/min", "Jain", "wrong")


def title_of(plan: Mapping[str, Any]) -> str:  # Any: JSON
    """Describe in one line what a report's plan measures."""
    rate, target, drafter = plan["habits"]["rate"], Path(plan["target"]), Path(plan["drafter"])
    loop = f"open loop, {rate:g} questions a second" if rate else "closed loop"
    drafts = f"replayed drafts of tau {plan['tau']:g}" if plan["kind"] == "replay" else f"real clients, {drafter.name}"
    link = plan["profile"] or NO_LINK
    return f"{target.name}, {loop}, think time {plan['habits']['think_s']:g} s, {drafts}, link {link}"


def throughput_table(
    title: str, runs: Sequence[LoadRun], controls: Sequence[GenerateResult], streams: Sequence[LoadRun]
) -> ResultTable:
    """Build a row per number of clients; ratios are to the first, or to a control of as many clients."""
    static_of = {control.batch: control.tokens_per_s for control in controls}
    stream_of = {run.num_clients: run.tokens_per_s for run in streams}
    rows = [
        [
            str(run.num_clients),
            f"{run.verifies_per_s:.1f}",
            _ratio(run.verifies_per_s, runs[0].verifies_per_s),
            f"{run.tokens_per_s:.1f}",
            _ratio(run.tokens_per_s, runs[0].tokens_per_s),
            _ratio(run.tokens_per_s, static_of.get(run.num_clients)),
            _ratio(run.tokens_per_s, stream_of.get(run.num_clients)),
            *_pass_cells(run),
        ]
        for run in runs
    ]
    columns = ("clients", "verifies/s", "ratio", "tokens/s", "ratio", "/ static batch", "/ stream")
    return table(title, (*columns, *_PASS_COLUMNS), rows)


def latency_table(runs: Sequence[LoadRun]) -> ResultTable:
    rows = [
        [str(run.num_clients), *map(_ms, (run.verdict, run.queue, run.verify, run.first_token, run.request))]
        for run in runs
    ]
    columns = ("clients", "verdict", "of it queue", "of it verify", "first token", "request")
    return table("latency, ms: 50th, 95th, 99th percentile", columns, rows)


def use_table(runs: Sequence[LoadRun]) -> ResultTable:
    rows = []
    for run in runs:
        sizes = (use for each in (run.server, run.clients) for use in (each.rss_before_bytes, each.rss_after_bytes))
        cores = (f"{each.cpu_s / run.seconds:.2f}" for each in (run.server, run.clients))
        errors = ", ".join(f"{kind} {count}" for kind, count in run.errors.items()) or "-"
        rows.append([str(run.num_clients), *cores, *(f"{size / _MIB:.0f}" for size in sizes), errors])
    columns = ("clients", "server cores", "clients' cores", "server MiB", "after", "clients' MiB", "after", "errors")
    return table("processor and memory", columns, rows)


def control_table(controls: Sequence[GenerateResult], streams: Sequence[LoadRun]) -> ResultTable:
    rows = [
        [
            f"generate{f' in {c.dtype}' if c.dtype else ''}, "
            + ("one by one" if c.batch == 1 else f"static batches of {c.batch}"),
            str(c.prompts),
            f"{c.tokens_per_s:.1f}",
            "-" if c.wrong is None else str(c.wrong),
        ]
        for c in controls
    ]
    rows += [
        [f"this server, {run.num_clients} clients, stream", str(run.answers), f"{run.tokens_per_s:.1f}", str(run.wrong)]
        for run in streams
    ]
    return table("without drafts", ("control", "prompts", "tokens/s", "wrong"), rows)


def plot_load(
    title: str,
    runs: Sequence[LoadRun],
    controls: Sequence[GenerateResult],
    streams: Sequence[LoadRun],
    path: Path,
) -> None:
    """Plot verifies and tokens per second, and verdict latency, against the number of clients."""
    with saved_figure(path, 1, 3, figsize=(15, 4.5)) as (figure, (left, middle, right)):
        clients = [run.num_clients for run in runs]
        left.plot(clients, [run.verifies_per_s for run in runs], "o-", color=COLORS[0], label="served")
        left.set_ylabel("verifies a second")
        middle.plot(clients, [run.tokens_per_s for run in runs], "o-", color=COLORS[0], label="served")
        static = [(control.batch, control.tokens_per_s) for control in controls]
        without = [(run.num_clients, run.tokens_per_s) for run in streams]
        for points, style, label in ((without, "s--", "served, stream (no drafts)"), (static, "x--", "generate")):
            if points:
                middle.plot(*zip(*points, strict=True), style, color="black", label=label)
        middle.set_ylabel("tokens a second")
        for color, name in zip(COLORS, ("p50", "p95", "p99"), strict=False):
            right.plot(clients, [getattr(run.verdict, name) for run in runs], "o-", color=color, label=name)
        right.set_ylabel("verdict latency of a draft, ms")
        for axes in (left, middle, right):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(clients, [str(count) for count in clients])
            axes.set_xlabel("clients")
            axes.legend(frameon=False, fontsize="small")
        figure.suptitle(title, fontsize="medium")


def _pass_cells(run: LoadRun) -> list[str]:
    batches, fairness = run.batches, run.fairness
    sessions = known = "-"
    if batches is not None:
        counts = {name: batches.get(f"outrider_{name}", 0.0) for name in _COUNTS}
        sessions = f"{counts['batch_sessions_sum'] / max(counts['batch_sessions_count'], 1.0):.1f}"
        # The share of the contexts' tokens that needed no pass.
        known = f"{counts['prefix_cache_hits_total'] / max(counts['prefix_cache_queries_total'], 1.0):.0%}"
    return [
        f"{run.mean_acceptance_length:.2f}",
        f"{run.nodes_per_draft:.1f}",
        sessions,
        known,
        "-" if fairness.p99_ratio is None else f"{fairness.p99_ratio:.2f}",
        f"{fairness.jain:.3f}",
        str(run.wrong),
    ]


_COUNTS = ("batch_sessions_sum", "batch_sessions_count", "prefix_cache_hits_total", "prefix_cache_queries_total")


def _ratio(value: float, other: float | None) -> str:
    return f"{value / other:.2f}" if other else "-"


def _ms(percentiles: LatencyPercentiles) -> str:
    return " ".join(f"{value:.1f}" for value in (percentiles.p50, percentiles.p95, percentiles.p99))
