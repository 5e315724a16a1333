"""`outrider-netsim`: list the profiles, or put a link in front of a server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from outrider_netsim.outages import Outage, in_order, parse_outage, run_outages
from outrider_netsim.profile import PROFILES, Direction, Profile, ProfileError, profile_named
from outrider_netsim.proxy import LinkStats, ProxyLink

USAGE_EXIT = 2

app = typer.Typer(help="Emulated links between a drafter and its target.", no_args_is_help=True, add_completion=False)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def main() -> None:
    """Entry point of the console command."""
    app()


@app.command("list")
def list_profiles() -> None:
    """Show the built-in profiles."""
    table = Table("profile", "up", "down", "round trip", "loss")
    for p in PROFILES.values():
        table.add_row(p.name, _describe(p.up), _describe(p.down), f"{p.round_trip_ms:.1f} ms", f"{p.up.loss:.1%}")
    console.print(table)
    for p in PROFILES.values():
        console.print(f"{p.name}: {p.source}", soft_wrap=True)
    console.print(
        "N(mean, deviation) is drawn for every packet and cut off at 0. Round trip: mean\n"
        "of small messages, jitter included. The proxy engine relays TCP and leaves loss out."
    )


@app.command()
def proxy(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients connect; port 0 picks a free one.")],
    upstream: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server behind the link.")],
    profile: Annotated[str, typer.Option(help="A name from `outrider-netsim list`.")],
    seed: Annotated[int, typer.Option(help="Seed of the jitter.")] = 0,
    outage: Annotated[
        list[str] | None, typer.Option(metavar="DURATION@START", help="Such as 3s@10s; may be given again.")
    ] = None,
) -> None:
    """Relay TCP through an emulated link until Ctrl-C; in a terminal, Enter cuts and restores it."""
    with _usage_errors():
        host, port = _address("--listen", listen)
        upstream_host, upstream_port = _address("--upstream", upstream)
        link = ProxyLink(upstream_host, upstream_port, profile_named(profile), seed, host=host, port=port)
        outages = in_order([parse_outage(text) for text in outage or []])
    try:
        asyncio.run(_run(link, upstream, outages))
    except OSError as error:
        _fail(f"cannot listen on {listen}: {error.strerror or error}. Choose another port, or 0 for a free one.")


async def _run(link: ProxyLink, upstream: str, outages: list[Outage]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with link:
        told = _Told(link)
        console.print(
            f"{link.address} -> {upstream} through {link.profile.name}, {_summary(link.profile)}", soft_wrap=True
        )
        if sys.stdin.isatty():
            console.print("Enter cuts the link and restores it; Ctrl-C ends.")
            loop.add_reader(sys.stdin.fileno(), told.toggle)
        planned = loop.create_task(run_outages(told, outages))
        await stopped.wait()
        planned.cancel()
        await asyncio.gather(planned, return_exceptions=True)
    console.print(_totals(link.stats))


class _Told:
    """A link that says on the terminal when it goes and comes."""

    def __init__(self, link: ProxyLink) -> None:
        self._link = link
        self._started_at = asyncio.get_running_loop().time()

    def cut(self) -> None:
        self._link.cut()
        self._say("[bold red]link cut[/]")

    def restore(self) -> None:
        self._link.restore()
        self._say("[bold green]link restored[/]")

    def toggle(self) -> None:
        if not sys.stdin.readline():  # the terminal went away
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        elif self._link.is_cut:
            self.restore()
        else:
            self.cut()

    def _say(self, text: str) -> None:
        console.print(f"{asyncio.get_running_loop().time() - self._started_at:8.2f} s  {text}")


def _describe(direction: Direction) -> str:
    jitter = f"N({direction.delay_ms:g}, {direction.jitter_ms:g})"
    delay = f"{direction.base_ms:g} + {jitter} ms" if direction.jitter_ms else f"{direction.mean_delay_ms:g} ms"
    return f"{delay}\n{direction.rate_bps / 1e6:g} Mbit/s" if direction.rate_bps else delay


def _summary(profile: Profile) -> str:
    lossy = max(profile.up.loss, profile.down.loss)
    note = f"; its {lossy:.1%} loss is left out, as this is a TCP relay" if lossy else ""
    return f"mean round trip {profile.round_trip_ms:.1f} ms{note}"


def _totals(stats: LinkStats) -> str:
    lanes = ", ".join(
        f"{name} {lane.bytes:,} bytes in {lane.chunks:,} chunks"
        for name, lane in (("up", stats.up), ("down", stats.down))
    )
    return f"{stats.connections} connections; {lanes}"


def _address(option: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ProfileError(f"{option} {text!r}: need HOST:PORT, such as 127.0.0.1:7401")
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except ProfileError as error:
        _fail(str(error))


def _fail(message: str) -> None:
    errors.print(f"[bold red]error:[/] {message}", soft_wrap=True)
    raise typer.Exit(USAGE_EXIT)
