"""`outrider-netsim probe`: measure a profile through an engine and compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.link_options import (
    LINK_PANEL,
    CongestionOption,
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
from outrider_netsim.cli.terminal import console, errors, exit_on_error, write_whole
from outrider_netsim.core.engine_names import (
    DEFAULT_CONGESTION,
    DEFAULT_LOSS_PACKETS,
    DEFAULT_PROBE_PACKETS,
    ProbeEngine,
)
from outrider_netsim.probe.samples import WAYS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from outrider_netsim.probe.report import DirectionReport
    from outrider_netsim.probe.run import ProbeRun

OFF_EXIT = 1
COLORS = {"ok": "green", "unclear": "yellow", "off": "bold red", "n/a": "dim"}

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
    congestion: CongestionOption = DEFAULT_CONGESTION,
    seed: SeedOption = None,
    engine: Annotated[
        ProbeEngine,
        typer.Option(
            help="Engine of the link; auto takes the most realistic one that this machine allows.",
            rich_help_panel=LINK_PANEL,
        ),
    ] = "auto",
    packets: Annotated[int, typer.Option(help="Packets for delays, each way.")] = DEFAULT_PROBE_PACKETS,
    loss_packets: Annotated[
        int, typer.Option(help="Packets for loss and reordering, each way.")
    ] = DEFAULT_LOSS_PACKETS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON, and the table to stderr.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all figures to this file, as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also plot the delays to a PNG, SVG or PDF file.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Exit with status 1 if a figure is off.")] = True,
) -> None:
    """Measure delay, jitter, loss, order and throughput through an engine and compare them with the profile.

    Takes half a minute, or minutes for in-order profiles, whose packets must not wait for each other. Planned outages
    are left out. A figure is off when chance does not explain it (99.99 %), unclear when more packets would tell.
    """
    import asyncio

    from outrider_netsim.probe.plot import check_plot_file, save_probe_plot
    from outrider_netsim.probe.run import probe_profile

    with exit_on_error():
        adjustments = LinkAdjustments(delay, jitter, distribution, loss, rate, queue, in_order)
        shaped = link_profile(profile, adjustments)
        if plot is not None:
            check_plot_file(plot)
        run = asyncio.run(
            probe_profile(
                shaped,
                engine,
                packets=packets,
                loss_packets=loss_packets,
                seed=seed,
                congestion=congestion,
                say=_print,
            )
        )
        text = json.dumps(run.as_json(), indent=1) + "\n"
        if as_json:
            sys.stdout.write(text)
        if output is not None:
            write_whole(text, output)
        if plot is not None:
            save_probe_plot(run, plot)
    _show(run, errors if as_json else console)
    if check and run.report.verdict == "off":
        raise typer.Exit(OFF_EXIT)


def _print(text: str) -> None:
    errors.print(text, soft_wrap=True, markup=False, style="dim")


def _show(run: ProbeRun, out: Console) -> None:
    from statistics import fmean

    for way in WAYS:
        out.print(_table(f"{run.profile.name} {way}, {run.engine}", run.report.ways[way]))
    costs = [delay for times in run.seen.control.values() for delay in times.delays_ms]
    if costs:
        out.print(f"control: over bare sockets a packet took {fmean(costs):.3f} ms, at most {max(costs):.3f} ms")
    if run.profile.outages:
        out.print("planned outages were left out")
    if run.report.verdict == "unclear":
        out.print("unclear: chance may explain it; probe again with more --packets and --loss-packets")


def _table(title: str, found: DirectionReport) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from outrider_netsim.probe.figure_text import HEADINGS, figure_note, figure_row

    notes = [note for note in map(figure_note, found.figures) if note]
    table = Table(title=title, title_justify="left", caption="\n".join(notes), box=SIMPLE_HEAD, pad_edge=False)
    table.caption_justify = "left"
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for figure in found.figures:
        *cells, verdict = figure_row(figure)
        table.add_row(*cells, f"[{COLORS[figure.verdict]}]{verdict}[/]")
    return table
