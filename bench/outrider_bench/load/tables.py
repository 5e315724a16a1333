"""Tables of load runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider_bench.core.tables import ResultTable, table
from outrider_bench.load.control import GenerateResult
from outrider_bench.load.measures.pass_samples import mean_of, share_of
from outrider_bench.load.metrics import LatencyPercentiles, LoadRun

_MIB = 2**20


def throughput_table(
    title: str,
    runs: Sequence[LoadRun],
    controls: Sequence[GenerateResult],
    streams: Sequence[LoadRun],
) -> ResultTable:
    """Build a row per number of clients; ratios are to the first, or to a control of as many clients."""
    static_of = {c.batch: c.tokens_per_s for c in controls if c.use_cache and c.order != "sorted"}
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
    rows = [
        [
            str(run.num_clients),
            f"{run.server.cpu_s / run.seconds:.2f}",
            f"{run.clients.cpu_s / run.seconds:.2f}",
            *(f"{size / _MIB:.0f}" for size in _sizes(run)),
            _counts(run.errors),
        ]
        for run in runs
    ]
    columns = ("clients", "server cores", "clients' cores", "server MiB", "after", "clients' MiB", "after", "errors")
    return table("processor and memory", columns, rows)


def control_table(controls: Sequence[GenerateResult], streams: Sequence[LoadRun]) -> ResultTable:
    rows = [[_control_name(c), str(c.prompts), f"{c.tokens_per_s:.1f}", str(c.wrong)] for c in controls]
    rows += [
        [f"this server, {run.num_clients} clients, stream", str(run.answers), f"{run.tokens_per_s:.1f}", str(run.wrong)]
        for run in streams
    ]
    return table("without drafts", ("control", "prompts", "tokens/s", "wrong"), rows)


def _control_name(control: GenerateResult) -> str:
    if control.order is None:
        return "generate, one by one" + ("" if control.use_cache else ", no cache")
    return f"generate, static batches of {control.batch}" + (", sorted" if control.order == "sorted" else "")


def soak_table(soak: Mapping[str, Any]) -> ResultTable:  # Any: JSON
    def total(*names: str) -> str:
        return str(sum(counters[name] for counters in soak["clients"] for name in names))

    rows = [
        ["seconds", f"{soak['seconds']:.0f}"],
        ["answers checked", total("checked")],
        *([name, total(name)] for name in ("tokens", "verdicts", "sessions")),
        *([f"faults: {kind}", str(count)] for kind, count in sorted(soak["faults"].items())),
        ["losses of the link, in answers", total("outages")],
        ["tokens written alone", total("unverified")],
        ["of them taken back", total("rolled_back")],
        ["wrong answers", total("wrong")],
        ["verdicts lost, twice or unasked", total("lost", "strays")],
        *([f"memory of {growth['who']}", _growth(growth)] for growth in soak["growth"]),
    ]
    return table("soak" + (", interrupted" if soak["interrupted"] else ""), ("what", "so many"), rows)


_PASS_COLUMNS = ("tau", "nodes", "sessions/pass", "known", "p99 max/min", "Jain", "wrong")


def _pass_cells(run: LoadRun) -> list[str]:
    fairness = run.fairness
    return [
        f"{run.mean_acceptance_length:.2f}",
        f"{run.nodes_per_draft:.1f}",
        "-" if run.batches is None else f"{mean_of(run.batches, 'outrider_batch_sessions'):.1f}",
        "-" if run.batches is None else f"{_known(run.batches):.0%}",
        "-" if fairness.p99_ratio is None else f"{fairness.p99_ratio:.2f}",
        f"{fairness.jain:.3f}",
        str(run.wrong),
    ]


def _known(batches: dict[str, float]) -> float:
    """Return the share of the contexts' tokens that needed no pass."""
    return share_of(batches, "outrider_prefix_cache_hits_total", "outrider_prefix_cache_queries_total")


def _counts(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counted.items()) or "-"


def _ratio(value: float, other: float | None) -> str:
    return f"{value / other:.2f}" if other else "-"


def _ms(percentiles: LatencyPercentiles) -> str:
    return " ".join(f"{value:.1f}" for value in (percentiles.p50, percentiles.p95, percentiles.p99))


def _sizes(run: LoadRun) -> tuple[int, int, int, int]:
    server, clients = run.server, run.clients
    return server.rss_before_bytes, server.rss_after_bytes, clients.rss_before_bytes, clients.rss_after_bytes


def _growth(growth: Mapping[str, Any]) -> str:  # Any: JSON
    return f"{growth['first_bytes'] / _MIB:.1f} -> {growth['last_bytes'] / _MIB:.1f} MiB ({growth['share']:+.2%})"
