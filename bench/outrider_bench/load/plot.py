"""Plots of load runs: throughput, latency and memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.load.control import GenerateResult
from outrider_bench.load.measures.memory_growth import MemorySample
from outrider_bench.load.metrics import LoadRun


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
        if streams:
            counts, tokens_per_s = [run.num_clients for run in streams], [run.tokens_per_s for run in streams]
            middle.plot(counts, tokens_per_s, "s--", color=COLORS[1], label="served, stream (no drafts)")
        for order, style in (("drawn", "x--"), ("sorted", "x:")):
            static = [(control.batch, control.tokens_per_s) for control in controls if control.order == order]
            if static:
                label = "generate, static batches" + (", sorted" if order == "sorted" else "")
                middle.plot(*zip(*static, strict=True), style, color="black", label=label)
        for control in controls:
            if control.order is None:
                label = "generate, one by one" + ("" if control.use_cache else ", no cache")
                style = "--" if control.use_cache else ":"
                middle.axhline(control.tokens_per_s, color="grey", linestyle=style, linewidth=1, label=label)
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


def plot_memory(title: str, samples: Sequence[MemorySample], warm_up_s: float, path: Path) -> None:
    """Plot the resident memory of every process against time."""
    with saved_figure(path, figsize=(8, 4.5)) as (_, axes):
        for who in dict.fromkeys(sample.who for sample in samples):
            own = [sample for sample in samples if sample.who == who]
            axes.plot([s.at_s / 60 for s in own], [s.rss_bytes / 2**20 for s in own], label=who)
        axes.axvline(warm_up_s / 60, color="grey", linestyle=":", label="warm-up ends")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("minutes")
        axes.set_ylabel("resident memory, MiB")
        axes.set_title(title, fontsize="medium")
        axes.legend(frameon=False, fontsize="small")
