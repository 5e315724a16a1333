"""`outrider-netsim fit`: from recordings of a link to a profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.terminal import console, errors

if TYPE_CHECKING:
    from outrider_netsim.fitting.fit import Fit

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
) -> None:
    """Fit a profile to recordings of a link, and show how near it is.

    A ping gives base, mean, deviation, distribution and coherence of the delay, loss and its bursts, and outages; half
    of each round trip counts for each way. A trace gives the rate, and is referred to.
    """
    from outrider_netsim.profiles.profile_files import profile_text
    from outrider_netsim.profiles.trace_files import write_text

    fitted = _fitted(recordings, up, output, interval)
    _describe(fitted)
    text = profile_text(fitted.profile)
    if output is None:
        console.print(text, end="", markup=False, soft_wrap=True)
    else:
        write_text(output, text)
        errors.print(f"{output} written", markup=False, soft_wrap=True)


def _fitted(recordings: list[Path], up: Path | None, output: Path | None, interval_s: float | None) -> Fit:
    from outrider_netsim.core.errors import ProfileError
    from outrider_netsim.fitting.fit import fit_profile, sort_recordings
    from outrider_netsim.fitting.recordings import RoundTrips, load_recording

    if output is not None and output.suffix != ".toml":
        raise ProfileError(f"--output {output}: need a name that ends in .toml")
    if interval_s is not None and not 0 < interval_s <= 3600:
        raise ProfileError(f"--interval {interval_s:g}: need more than 0 and at most 3600 seconds")
    pings, down = sort_recordings([load_recording(file, interval_s) for file in recordings])
    trace = load_recording(up) if up is not None else None
    if isinstance(trace, RoundTrips):
        raise ProfileError(f"--up {up}: a ping has both ways in it: give it without --up")
    return fit_profile((output or recordings[0]).stem, pings, down, trace)


def _describe(fitted: Fit) -> None:
    from rich.table import Table

    if not fitted.delays:
        errors.print("delay and loss are not in the recording: edit base_ms, or add a ping", soft_wrap=True)
        return
    table = Table("round trip", "recorded", "fitted")
    for name, values in fitted.table.items():
        table.add_row(name, *(f"{value:.4g}" for value in values))
    errors.print(table)
    distances = ", ".join(f"{one.direction.distribution} {one.distance_ms:.3g} ms" for one in fitted.delays)
    errors.print(f"mean distance of quantiles: {distances}", soft_wrap=True)
    errors.print("half of a round trip each way: a ping cannot tell the two apart", soft_wrap=True)
