"""`outrider-netsim transfers`: measure what TCP makes of links, engine beside engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.link_options import CongestionOption
from outrider_netsim.cli.terminal import console, errors, exit_on_error, write_whole
from outrider_netsim.core.engine_names import DEFAULT_CONGESTION, TRANSFER_ENGINES, TransferEngine
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.transfers.plan import TransferPlan

if TYPE_CHECKING:
    from rich.console import Console

    from outrider_netsim.transfers.report import TransferReport

OFF_EXIT = 1
MAX_WIDTH = 1000
WORDS = ("profile", "engine", "figure")
PLAN = TransferPlan()

app = typer.Typer()


@app.command()
def transfers(
    profile: Annotated[
        list[str] | None, typer.Option(help="A built-in name, FILE.toml, or FILE.toml:NAME; repeat for several.")
    ] = None,
    engine: Annotated[list[str] | None, typer.Option(help="kernel, tun, proxy or virtual; repeat for several.")] = None,
    repetitions: Annotated[int, typer.Option(help="Repetitions of everything, each with a seed of its own.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the first repetition; the next ones have the next numbers.")] = 1,
    seconds: Annotated[float, typer.Option(help="Seconds of each download.")] = PLAN.seconds,
    size: Annotated[int, typer.Option(help="Bytes of a transfer after a pause.")] = PLAN.size_bytes,
    idle: Annotated[float, typer.Option(help="Seconds of that pause.")] = PLAN.idle_s,
    transfers: Annotated[int, typer.Option(help="Transfers after a pause.")] = PLAN.transfers,
    cut: Annotated[
        list[float] | None, typer.Option(help="Seconds of a cut; repeat for several.  [default: 3, 8]")
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests during each cut.")] = PLAN.requests,
    loss: Annotated[
        float, typer.Option(help="Share of packets lost on the way up, for what a lone lost packet costs.")
    ] = PLAN.loss,
    exchanges: Annotated[int, typer.Option(help="Small exchanges with that loss.")] = PLAN.exchanges,
    replies: Annotated[int, typer.Option(help="Replies of eight packets.")] = PLAN.replies,
    pings: Annotated[int, typer.Option(help="Exchanges without jitter, for the engine's own delay.")] = PLAN.pings,
    congestion: CongestionOption = DEFAULT_CONGESTION,
    links: Annotated[
        int, typer.Option(min=1, help="Links that are measured at once, but for downloads, which run alone.")
    ] = 1,
    with_report: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FILE", help="Add the rows and repetitions of this earlier report."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Engine to compare the others with, instead of kernel, or tun without it.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also print means, 95th percentiles and numbers of samples.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as Markdown, for a page of documentation.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON, and the table to stderr.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all figures to this file, as JSON.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with status 1 if a figure is off by more than chance explains.")
    ] = False,
) -> None:
    """Measure TCP over links: downloads, round trips beside them, transfers after a pause, cuts and lost packets.

    Each figure is a median with its 95 % interval, and its ratio to the reference engine's. A ratio that is off by more
    than 15 % is marked: ! if its interval is off too, ? if chance may explain it. A count or duration of 0 leaves a
    measure out. One repetition of one profile takes a minute and a half with a real engine, seconds with virtual.
    """
    from outrider_netsim.transfers.table import markdown

    with exit_on_error():
        plan = TransferPlan(
            seconds=seconds,
            size_bytes=size,
            idle_s=idle,
            transfers=transfers,
            cuts_s=PLAN.cuts_s if cut is None else tuple(cut),
            requests=requests,
            loss=loss,
            exchanges=exchanges,
            replies=replies,
            pings=pings,
            congestion=congestion,
        )
        report = _measured(plan, profile or [], engine or [], repetitions, seed, links, with_report or [])
        if reference is not None and reference not in {row.engine for row in report.rows}:
            raise ProfileError(f"reference {reference!r}: no row has that engine")
        text = json.dumps(report.as_json()) + "\n"
        if as_json:
            sys.stdout.write(text)
        if output is not None:
            write_whole(text, output)
    out = errors if as_json else console
    if as_markdown:
        out.print(markdown(report, reference), end="", markup=False, soft_wrap=True)
    else:
        _show(report, reference, details, out)
    if check and _is_off(report, reference):
        raise typer.Exit(OFF_EXIT)


def _measured(
    plan: TransferPlan,
    profiles: list[str],
    engines: list[str],
    repetitions: int,
    seed: int,
    links: int,
    files: list[Path],
) -> TransferReport:
    """Measure, if there is something to measure, and add the rows of earlier reports."""
    import asyncio

    from outrider_netsim.profiles.builtin import profile_named
    from outrider_netsim.transfers.report import load_report
    from outrider_netsim.transfers.run import measure_transfers

    reports = [load_report(file) for file in files]
    if profiles or not files:
        if not profiles or not engines:
            missing = "--engine" if profiles else "--profile"
            raise ProfileError(f"{missing} is missing: name at least one profile and one engine, or --with FILE")
        shaped = [profile_named(name) for name in dict.fromkeys(profiles)]
        chosen = [_engine(name) for name in dict.fromkeys(engines)]
        measuring = measure_transfers(shaped, chosen, plan, repetitions=repetitions, seed=seed, links=links, say=_print)
        found = asyncio.run(measuring)
    else:
        found, *reports = reports
        files = files[1:]
    for report, file in zip(reports, files, strict=True):
        found = found.with_rows_of(report, str(file))
    return found


def _engine(name: str) -> TransferEngine:
    # typer reads lists of plain types only.
    if name not in TRANSFER_ENGINES:
        raise ProfileError(f"engine {name!r} is unknown: choose from {', '.join(TRANSFER_ENGINES)}")
    return name


def _print(text: str) -> None:
    errors.print(text, soft_wrap=True, markup=False, style="dim")


def _show(report: TransferReport, reference: str | None, details: bool, out: Console) -> None:
    from outrider_netsim.transfers.table import DETAIL_HEADINGS, NOTE, detail_rows, headings, table_rows

    _print_table(headings(report), table_rows(report, reference), out)
    if details:
        _print_table(DETAIL_HEADINGS, detail_rows(report), out)
    out.print(NOTE, markup=False, soft_wrap=True)


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], out: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True, justify="left" if heading in WORDS else "right")
    for cells in rows:
        table.add_row(*cells)
    # As wide as it needs: in a file or a narrow terminal, columns that are cut off say nothing.
    out.width = max(out.width, out.measure(table, options=out.options.update(max_width=MAX_WIDTH)).maximum)
    out.print(table, crop=False)


def _is_off(report: TransferReport, reference: str | None) -> bool:
    ratios = [report.ratio(row, figure, reference) for row in report.rows for figure in row.estimates]
    return any(ratio.is_surely_outside for ratio in ratios if ratio)
