"""`outrider-netsim trace`: make traces of changing links, and check those one has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider_netsim.cli.terminal import console, exit_on_error
from outrider_netsim.profiles.synthetic import Cellular
from outrider_netsim.profiles.trace_files import is_csv, load_trace, save_trace
from outrider_netsim.profiles.trace_summary import summary
from outrider_netsim.profiles.traces import DeliveryTrace, Trace

app = typer.Typer()
trace_app = typer.Typer(help="Links that change over time, as files.", no_args_is_help=True)
app.add_typer(trace_app, name="trace")


@trace_app.command()
def generate(
    file: Annotated[Path, typer.Argument(help="FILE.csv gets delay, rate and loss; any other name Mahimahi's format.")],
    seconds: Annotated[float, typer.Option(help="Its length; it repeats after that.")] = 60.0,
    mbps: Annotated[float, typer.Option(help="Mean rate in Mbit/s.")] = 20.0,
    delay_ms: Annotated[float, typer.Option(help="One way, where the radio is strong; only in FILE.csv.")] = 20.0,
    handover_every: Annotated[float, typer.Option(metavar="SECONDS", help="Mean interval; 0: none.")] = 30.0,
    handover_ms: Annotated[float, typer.Option(help="How long nothing passes in a handover.")] = 50.0,
    seed: Annotated[int, typer.Option(help="The same seed makes the same file.")] = 0,
) -> None:
    """Make up a cellular link: levels, fades and handovers."""
    with exit_on_error():
        cellular = Cellular(mbps * 1e6, delay_ms, handover_every, handover_ms / 1000)
        trace = (cellular.conditions if is_csv(file) else cellular.deliveries)(seconds, seed)
        save_trace(trace, file)
    _print(str(file), trace)


@trace_app.command()
def check(files: Annotated[list[Path], typer.Argument(help="FILE.csv, or Mahimahi's format.")]) -> None:
    """Read traces and say what they hold; ends with 2 at the first line that is wrong."""
    with exit_on_error():
        traces = {str(file): load_trace(file) for file in files}
    for name, trace in traces.items():
        _print(name, trace)


def _print(name: str, trace: Trace) -> None:
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
