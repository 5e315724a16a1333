"""`outrider-netsim probe`: measure what a link does to packets, beside its profile."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.link_options import LINK_PANEL, LinkOptions, link_profile
from outrider_netsim.cli.terminal import console, errors
from outrider_netsim.core.engine_names import DEFAULT_PROBE_PACKETS, ProbeEngine
from outrider_proto.options.command import with_options
from outrider_proto.options.fields import Flag

if TYPE_CHECKING:
    from outrider_netsim.probe.run import Figure, ProbeReport

TITLES = {"mean_ms": "mean delay, ms", "deviation_ms": "standard deviation, ms", "p50_ms": "median, ms"}
TITLES |= {"p99_ms": "99 % below, ms", "throughput_mbps": "throughput, Mbit/s"}
SHARES = {"lost": "lost, %", "overtaken": "overtaken, %"}

app = typer.Typer()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions(LinkOptions):
    """The link, and how to measure it."""

    engine: Annotated[
        ProbeEngine,
        Flag("Engine of the link; auto takes kernel, or tun where this machine has no netem.", panel=LINK_PANEL),
    ] = "auto"
    packets: Annotated[
        int, Flag("Packets for delays, each way; ten times as many for loss and order.", expert=True)
    ] = DEFAULT_PROBE_PACKETS
    as_json: Annotated[bool, Flag("Print all figures as JSON.", name="json", panel="Output")] = False


@app.command(no_args_is_help=True)
@with_options(ProbeOptions)
def probe(options: ProbeOptions) -> None:
    """Measure delay, jitter, loss, order and throughput of a link's packets, beside the values of its profile.

    Takes half a minute, or minutes for in-order profiles, whose packets must not wait for each other. Planned outages
    are left out.
    """
    import asyncio

    from outrider_netsim.probe.run import probe_profile

    profile = link_profile(options)
    report = asyncio.run(probe_profile(profile, options.engine, packets=options.packets, seed=options.seed, say=_print))
    if options.as_json:
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
