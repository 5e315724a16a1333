"""`outrider-netsim proxy`: run a TCP relay until it is stopped."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.terminal import console, exit_on_error, fail
from outrider_netsim.core.addresses import parse_address

if TYPE_CHECKING:
    from outrider_netsim.engines.proxy import ProxyLink
    from outrider_netsim.profiles.outages import Outage
    from outrider_netsim.profiles.profile import Profile

app = typer.Typer()


@app.command()
def proxy(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for clients to connect to; port 0 picks a free one.")
    ],
    upstream: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the server behind the link.")],
    profile: Annotated[str, typer.Option(help="A name from `outrider-netsim list`, FILE.toml, or FILE.toml:NAME.")],
    seed: Annotated[int, typer.Option(help="Random seed for delays and losses.")] = 0,
    outage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DURATION@START",
            help="Planned outage such as 3s@10s, or 1s@5s/30s for a recurring one; 50ms@7s/20s+hold keeps packets and "
            "forwards them afterwards; repeatable.",
        ),
    ] = None,
) -> None:
    """Relay TCP through an emulated link until Ctrl-C; in a terminal, Enter cuts and restores it."""
    import asyncio
    from dataclasses import replace

    from outrider_netsim.engines.proxy import ProxyLink
    from outrider_netsim.profiles.builtin import profile_named
    from outrider_netsim.profiles.outages import in_order, parse_outage

    with exit_on_error():
        at, server = parse_address("--listen", listen), parse_address("--upstream", upstream)
        given = in_order([parse_outage(text) for text in outage or []])
        # The others are cut from here, to print a line each time.
        outages = [planned for planned in given if not planned.hold]
        shaped = profile_named(profile)
        held = tuple(planned for planned in given if planned.hold)
        link = ProxyLink(replace(shaped, outages=shaped.outages + held), server, seed, listen=at)
    try:
        asyncio.run(_run(link, upstream, outages))
    except OSError as error:
        fail(f"cannot listen on {listen}: {error.strerror or error}. Choose another port, or 0 for a free one.")


async def _run(link: ProxyLink, upstream: str, outages: list[Outage]) -> None:
    import asyncio

    from outrider_netsim.cli.link_controls import LinkControls
    from outrider_netsim.profiles.outages import run_outages

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with link:
        controls = LinkControls(link, console)
        console.print(
            f"{link.address} -> {upstream} through {link.profile.name}, {_summary(link.profile)}", soft_wrap=True
        )
        if sys.stdin.isatty():
            console.print("Enter cuts the link and restores it; Ctrl-C ends.")
            loop.add_reader(sys.stdin.fileno(), controls.toggle)
        planned = loop.create_task(run_outages(controls, outages))
        await stopped.wait()
        planned.cancel()
        await asyncio.gather(planned, return_exceptions=True)
    console.print(_totals(link))


def _summary(profile: Profile) -> str:
    lossy = max(profile.up.mean_loss, profile.down.mean_loss)
    note = f"; its {lossy:.1%} loss stalls a connection for a while, as this is a TCP relay" if lossy else ""
    return f"mean round trip {profile.round_trip_ms:.1f} ms{note}"


def _totals(link: ProxyLink) -> str:
    lanes = ", ".join(
        f"{name} {lane.bytes:,} bytes in {lane.chunks:,} chunks"
        for name, lane in zip(("up", "down"), link.payload, strict=True)
    )
    return f"{link.stats.connections} connections; {lanes}"
