"""`outrider-netsim list` and `show`: list the profiles, and describe one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.terminal import console

if TYPE_CHECKING:
    from outrider_netsim.profiles.profile import Direction, Profile

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
SYMBOLS = {"normal": "N", "uniform": "U", "pareto": "P", "paretonormal": "PN"}

app = typer.Typer()


@app.command("list")
def list_profiles() -> None:
    """List the built-in profiles."""
    from rich.table import Table

    from outrider_netsim.profiles.builtin import PROFILES

    table = Table("profile", "one-way\ndelay, ms", "Mbit/s\nup, down", "loss", "order", "round\ntrip")
    for profile in PROFILES.values():
        table.add_row(*_cells(profile))
    console.print(table)
    for source in dict.fromkeys(profile.source for profile in PROFILES.values()):
        names = ", ".join(name for name, profile in PROFILES.items() if profile.source == source)
        console.print(f"{names}: {source}", markup=False, soft_wrap=True)
    console.print(
        "N, U, P(mean, deviation): normal, uniform, Pareto, drawn for each packet, cut off at 0.\n"
        "Round trip: mean of small messages. More: outrider-netsim show PROFILE.",
        soft_wrap=True,
    )


@app.command()
def show(
    profile: Annotated[str, typer.Argument(help="A built-in name, FILE.toml, or FILE.toml:NAME.")],
    toml: Annotated[bool, typer.Option("--toml", help="Print it as TOML, as a start for a file of your own.")] = False,
) -> None:
    """Describe a profile: delay, rate, loss, queue and order each way."""
    from rich.table import Table

    from outrider_netsim.profiles.builtin import profile_named
    from outrider_netsim.profiles.profile_files import profile_text

    shown = profile_named(profile)
    if toml:
        console.print(profile_text(shown), end="", markup=False, soft_wrap=True)
        return
    table, down = Table(shown.name, "up", "down"), _rows(shown.down)
    for name, up in _rows(shown.up).items():
        table.add_row(name, up, down[name])
    console.print(table)
    for line in _notes(shown):
        console.print(line, markup=False, soft_wrap=True)


def _cells(profile: Profile) -> tuple[str, ...]:
    up, down = _law(profile.up), _law(profile.down)
    return (
        profile.name,
        up if up == down else f"{up}\n{down}",
        f"{profile.up.rate_bps / 1e6:g}, {profile.down.rate_bps / 1e6:g}",
        f"{max(profile.up.mean_loss, profile.down.mean_loss):.1%}",
        "kept" if profile.up.in_order else "",
        f"{profile.round_trip_ms:.1f} ms",
    )


def _law(direction: Direction) -> str:
    if not direction.jitter_ms:
        return f"{direction.mean_delay_ms:g}"
    # A table goes by the name of its file.
    symbol = SYMBOLS.get(str(direction.distribution)) or Path(str(direction.distribution)).stem
    return f"{direction.base_ms:g} + {symbol}({direction.delay_ms:g}, {direction.jitter_ms:g})"


def _rows(direction: Direction) -> dict[str, str]:
    return {
        "one-way delay": f"{_law(direction)} ms",
        "mean, deviation": f"{direction.mean_delay_ms:.2f}, {direction.delay_deviation_ms:.2f} ms",
        "correlation": _correlation(direction),
        **{f"{q:.1%} stay below": f"{1000 * direction.quantile_s(q):.2f} ms" for q in QUANTILES},
        "rate": f"{direction.rate_bps / 1e6:g} Mbit/s" if direction.rate_bps else "no limit",
        "loss": _loss(direction),
        "duplicated, corrupted": f"{direction.duplicate:.2%}, {direction.corrupt:.2%}",
        "queue": _queue(direction),
        "slots": f"every {direction.slot_ms:g} ms" if direction.slot_ms else "none",
        "order": "kept" if direction.in_order else "jitter reorders",
        "trace": direction.trace.name if direction.trace else "none",
    }


def _correlation(direction: Direction) -> str:
    if direction.coherence_ms:
        return f"1/e after {direction.coherence_ms:g} ms"
    return f"{direction.correlation:g} by packet" if direction.correlation else "none"


def _queue(direction: Direction) -> str:
    limit = f"{direction.queue_packets} packets" if direction.queue_packets else f"{direction.buffer_bytes} bytes"
    if direction.queue_ms:
        limit = f"{direction.queue_ms:g} ms at the rate"
    return limit if direction.aqm == "none" else f"{limit}, {direction.aqm}"


def _loss(direction: Direction) -> str:
    bursts = direction.bursts
    if bursts is None:
        return f"{direction.loss:.2%}"
    return f"{bursts.mean_loss:.2%}, in bursts of {1 / bursts.r:.0f} packets"


def _notes(profile: Profile) -> list[str]:
    from outrider_netsim.profiles.outages import outage_text

    notes = [f"round trip {profile.round_trip_ms:.1f} ms in the mean, of small messages"]
    if profile.outages:
        notes.append(
            f"outages: {', '.join(map(outage_text, profile.outages))} (duration@start/every; +hold: packets wait)"
        )
    if profile.up.trace or profile.down.trace:
        notes.append("a trace replaces what it says of delay, rate and loss: see outrider-netsim trace check")
    if profile.source:
        notes.append(f"source: {profile.source}")
    return notes
