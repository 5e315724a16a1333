"""`outrider-netsim trace`: generate traces of changing links, and check trace files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.terminal import console

if TYPE_CHECKING:
    from outrider_netsim.profiles.traces import Trace

app = typer.Typer()
trace_app = typer.Typer(help="Generate and check files of links that change over time.", no_args_is_help=True)
app.add_typer(trace_app, name="trace")


@trace_app.command()
def generate(
    file: Annotated[
        Path,
        typer.Argument(help="File to write: FILE.csv for delay, rate and loss, any other name for Mahimahi's format."),
    ],
    seconds: Annotated[float, typer.Option(help="Length of the trace in seconds; it repeats after that.")] = 60.0,
    mbps: Annotated[float, typer.Option(help="Mean rate in Mbit/s.")] = 20.0,
    delay_ms: Annotated[
        float, typer.Option(help="One-way delay in ms where the signal is strong; FILE.csv only.")
    ] = 20.0,
    handover_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Mean time between handovers in seconds; 0 for none.")
    ] = 30.0,
    handover_ms: Annotated[float, typer.Option(help="Length of a handover, in which nothing passes, in ms.")] = 50.0,
    seed: Annotated[int, typer.Option(help="Random seed; the same seed makes the same file.")] = 0,
) -> None:
    """Generate a synthetic cellular link with signal levels, fades and handovers."""
    from outrider_netsim.profiles.synthetic import Cellular
    from outrider_netsim.profiles.trace_files import is_csv, save_trace

    cellular = Cellular(mbps * 1e6, delay_ms, handover_every, handover_ms / 1000)
    trace = (cellular.conditions if is_csv(file) else cellular.deliveries)(seconds, seed)
    save_trace(trace, file)
    _print(f"{file} (seed {seed})", trace)


@trace_app.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="Trace files in any of the formats that --trace reads.")],
) -> None:
    """Read traces and print a summary; the exit status is 2 if one is invalid."""
    from outrider_netsim.profiles.trace_files import load_recorded

    for link in [load_recorded(file) for file in files]:
        console.print(link.summary, markup=False, soft_wrap=True)
        ways = {"both ways": link.up} if link.up == link.down else {"up": link.up, "down": link.down}
        for name, trace in ways.items():
            if trace is not None:
                _print(name, trace)


def _print(name: str, trace: Trace) -> None:
    from outrider_netsim.profiles.trace_summary import summary
    from outrider_netsim.profiles.traces import DeliveryTrace

    found = summary(trace)
    kind = "opportunities" if isinstance(trace, DeliveryTrace) else "rows"
    gap = "" if found.longest_gap_s is None else f", longest gap {found.longest_gap_s * 1000:g} ms"
    console.print(f"{name}: {found.entries:,} {kind} in {found.duration_s:g} s{gap}", markup=False, soft_wrap=True)
    for what, spread, unit in (
        ("rate, Mbit/s", found.rate_bps, 1e-6),
        ("delay, ms", found.delay_ms, 1),
        ("loss, %", found.loss, 100),
    ):
        if spread is not None:
            least, mean, most = (f"{value * unit:.3g}" for value in (spread.least, spread.mean, spread.most))
            console.print(f"  {what:13} least {least:>8}   mean {mean:>8}   most {most:>8}")
