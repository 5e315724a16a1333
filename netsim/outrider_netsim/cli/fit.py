"""`outrider-netsim fit`: from recordings of a link to a profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.terminal import console, errors, exit_on_error

if TYPE_CHECKING:
    from outrider_netsim.fitting.comparison import Row
    from outrider_netsim.fitting.fit import Fit, FitOptions

app = typer.Typer()


@app.command(no_args_is_help=True)
def fit(
    recordings: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORDING...",
            help="What ping printed (best with -D), FILE.csv with time_s and rtt_ms, or a trace as in `trace check`, "
            "which counts for the way down; several pings are pooled.",
        ),
    ],
    up: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="Trace of the way up; without it, both ways have the same.")
    ] = None,
    model: Annotated[
        bool,
        typer.Option(
            "--model",
            help="Replace traces: Mahimahi's by a made one with the same rates in another order, FILE.csv by its means "
            "and a distribution of its delays.",
        ),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the profile.  [default: that of the file]", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="File for the profile, in place of standard output.")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Time between pings where the file does not tell it.  [default: 1]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of a made trace.")] = 0,
) -> None:
    """Fit a profile to recordings of a link, and show how near it is.

    A ping gives base, mean, deviation, distribution and coherence of the delay, loss and its bursts, and outages; half
    of each round trip counts for each way. A trace gives the rate, and is referred to.
    """
    from outrider_netsim.fitting.fit import fit_profile
    from outrider_netsim.profiles.profile_files import profile_text

    with exit_on_error():
        fitted = fit_profile(_options(recordings, up, model, name, output, interval, seed))
        _describe(fitted)
        _write(fitted)
        text = profile_text(fitted.profile)
        if output is None:
            console.print(text, end="", markup=False, soft_wrap=True)
        else:
            _save(output, text)
            errors.print(f"{output} written", markup=False, soft_wrap=True)


def _options(
    recordings: list[Path],
    up: Path | None,
    model: bool,
    name: str | None,
    output: Path | None,
    interval_s: float | None,
    seed: int,
) -> FitOptions:
    from outrider_netsim.core.errors import ProfileError
    from outrider_netsim.fitting.fit import FitOptions, sort_recordings
    from outrider_netsim.fitting.recordings import RoundTrips, load_recording
    from outrider_netsim.profiles.traces import DeliveryTrace

    if output is not None and output.suffix != ".toml":
        raise ProfileError(f"--output {output}: need a name that ends in .toml")
    if interval_s is not None and not 0 < interval_s <= 3600:
        raise ProfileError(f"--interval {interval_s:g}: need more than 0 and at most 3600 seconds")
    pings, down = sort_recordings([load_recording(file, interval_s) for file in recordings])
    trace = load_recording(up) if up is not None else None
    if isinstance(trace, RoundTrips):
        raise ProfileError(f"--up {up}: a ping has both ways in it: give it without --up")
    if model and output is None and any(isinstance(one, DeliveryTrace) for one in (down, trace)):
        raise ProfileError("--model: need --output FILE.toml, to write the made trace beside it")
    usual_name = (output or recordings[0]).stem
    return FitOptions(name or usual_name, pings, down, trace, model, seed, output)


def _describe(fitted: Fit) -> None:
    for title, rows in fitted.tables.items():
        errors.print(_table(title, rows))
    for what, fits in fitted.delays.items():
        distances = ", ".join(f"{one.distribution} {one.distance_ms:.3g} ms ({one.largest_gap:.3f})" for one in fits)
        errors.print(f"{what}, mean distance of quantiles (largest gap of shares): {distances}", soft_wrap=True)
    if "round trip" in fitted.tables:
        errors.print("half of a round trip each way: a ping cannot tell the two apart", soft_wrap=True)
    if not fitted.delays:
        errors.print("delay and loss are not in the recording: edit base_ms, or add a ping", soft_wrap=True)


def _table(title: str, rows: list[Row]) -> object:
    from rich.table import Table

    table = Table(title, "recorded", "fitted")
    for row in rows:
        table.add_row(row.name, f"{row.recorded:.4g}", f"{row.fitted:.4g}")
    return table


def _write(fitted: Fit) -> None:
    from outrider_netsim.profiles.trace_files import save_trace

    for file, trace in fitted.made.items():
        save_trace(trace, file)
        errors.print(f"{file} written", markup=False, soft_wrap=True)


def _save(file: Path, text: str) -> None:
    from outrider_netsim.core.errors import ProfileError

    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"{file}: cannot be written: {error.strerror or error}") from None
