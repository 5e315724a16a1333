"""`outrider-netsim trace`: generate traces of changing links, and check trace files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from outrider_netsim.cli.terminal import console
from outrider_netsim.profiles.traces import OPPORTUNITY_BYTES, DeliveryTrace, Trace

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
    for line in described(name, trace):
        console.print(line, markup=False, soft_wrap=True)


def described(name: str, trace: Trace) -> Iterator[str]:
    """Yield lines about a trace: its length, and least, mean and most of what it has over its time."""
    import numpy as np

    if isinstance(trace, DeliveryTrace):
        at_ms, seconds = np.asarray(trace.at_ms, dtype=np.int64), trace.period_ms // 1000
        gap_ms = np.diff(at_ms, prepend=0).max()  # the first one goes across the repetition
        yield f"{name}: {len(at_ms):,} opportunities in {trace.period_ms / 1000:g} s, longest gap {gap_ms:g} ms"
        mean = trace.mean_rate_bps / 1e6
        # By the second, without a partial last one.
        rates = np.bincount(at_ms // 1000)[:seconds] * (OPPORTUNITY_BYTES * 8 / 1e6) if seconds else np.array([mean])
        yield _spread("rate, Mbit/s", rates.min(), mean, rates.max())
        return
    yield f"{name}: {len(trace.times_s):,} rows in {trace.period_s:g} s"
    spans = np.diff(np.asarray(trace.times_s), append=trace.period_s)
    columns = {"rate, Mbit/s": (trace.rate_bps, 1e-6), "delay, ms": (trace.delay_ms, 1), "loss, %": (trace.loss, 100)}
    for what, (column, unit) in columns.items():
        if column is not None:
            values = np.asarray(column) * unit
            yield _spread(what, values.min(), float(np.average(values, weights=spans)), values.max())


def _spread(what: str, least: float, mean: float, most: float) -> str:
    return f"  {what:13} least {least:>8.3g}   mean {mean:>8.3g}   most {most:>8.3g}"
