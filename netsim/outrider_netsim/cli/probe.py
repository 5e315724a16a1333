"""`outrider-netsim probe`: measure what a link does to packets, beside its profile."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.link_options import (
    LINK_PANEL,
    DelayOption,
    DistributionOption,
    InOrderOption,
    JitterOption,
    LinkAdjustments,
    LossOption,
    ProfileOption,
    QueueOption,
    RateOption,
    SeedOption,
    link_profile,
)
from outrider_netsim.cli.terminal import console, errors, exit_on_error
from outrider_netsim.core.engine_names import DEFAULT_PROBE_PACKETS, ProbeEngine

if TYPE_CHECKING:
    from outrider_netsim.probe.run import Figure, ProbeReport

TITLES = {"mean_ms": "mean delay, ms", "deviation_ms": "standard deviation, ms", "p50_ms": "median, ms"}
TITLES |= {"p99_ms": "99 % below, ms", "throughput_mbps": "throughput, Mbit/s"}
SHARES = {"lost": "lost, %", "overtaken": "overtaken, %"}

app = typer.Typer()


@app.command()
def probe(
    profile: ProfileOption = None,
    delay: DelayOption = None,
    jitter: JitterOption = None,
    distribution: DistributionOption = None,
    loss: LossOption = None,
    rate: RateOption = None,
    queue: QueueOption = None,
    in_order: InOrderOption = None,
    seed: SeedOption = None,
    engine: Annotated[
        ProbeEngine,
        typer.Option(
            help="Engine of the link; auto takes kernel, or tun where this machine has no netem.",
            rich_help_panel=LINK_PANEL,
        ),
    ] = "auto",
    packets: Annotated[
        int, typer.Option(help="Packets for delays, each way; ten times as many for loss and order.")
    ] = DEFAULT_PROBE_PACKETS,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Measure delay, jitter, loss, order and throughput of a link's packets, beside the values of its profile.

    Takes half a minute, or minutes for in-order profiles, whose packets must not wait for each other. Planned outages
    are left out.
    """
    import asyncio

    from outrider_netsim.probe.run import probe_profile

    with exit_on_error():
        adjustments = LinkAdjustments(delay, jitter, distribution, loss, rate, queue, in_order)
        shaped = link_profile(profile, adjustments)
        report = asyncio.run(probe_profile(shaped, engine, packets=packets, seed=seed, say=_print))
    if as_json:
        sys.stdout.write(json.dumps(report.as_json(), indent=1) + "\n")
    else:
        _show(report)


def _print(text: str) -> None:
    errors.print(text, soft_wrap=True, markup=False, style="dim")


def _show(report: ProbeReport) -> None:
    from rich.table import Table

    for way, figures in report.ways.items():
        table = Table(f"{report.profile.name} {way}, {report.engine}", "measured", "profile")
        for name, figure in figures.items():
            table.add_row(TITLES.get(name) or SHARES[name], *_cells(name, figure))
        console.print(table)


def _cells(name: str, figure: Figure) -> tuple[str, str]:
    scale = 100 if name in SHARES else 1
    measured, profile = ("" if value is None else f"{scale * value:.2f}" for value in (figure.measured, figure.profile))
    return measured, profile
