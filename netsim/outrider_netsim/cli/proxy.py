"""`outrider-netsim proxy`: keep a link open for clients until it is stopped."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.link_options import (
    LINK_PANEL,
    TRAFFIC_PANEL,
    OpenLinkOptions,
    introduction,
    link_profile,
    totals,
)
from outrider_netsim.cli.terminal import console
from outrider_netsim.core.addresses import parse_address
from outrider_netsim.core.engine_names import EngineChoice
from outrider_netsim.core.errors import ProfileError
from outrider_proto.options.command import with_options
from outrider_proto.options.fields import Flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider_netsim.link import Link
    from outrider_netsim.profiles.outages import Outage

app = typer.Typer()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions(OpenLinkOptions):
    """The link, and the addresses at its ends."""

    listen: Annotated[
        str,
        Flag(
            "Address for clients to connect to; port 0 picks a free one, 0.0.0.0 lets other machines in.",
            panel=TRAFFIC_PANEL,
            metavar="HOST:PORT",
        ),
    ]
    upstream: Annotated[str, Flag("Address of the server behind the link.", panel=TRAFFIC_PANEL, metavar="HOST:PORT")]
    engine: Annotated[
        EngineChoice,
        Flag("Engine of the link: proxy needs no privileges, kernel and tun carry real packets.", panel=LINK_PANEL),
    ] = "proxy"


@app.command(no_args_is_help=True)
@with_options(ProxyOptions)
def proxy(options: ProxyOptions) -> None:
    """Relay TCP through an emulated link until Ctrl-C; in a terminal, Enter cuts and restores it.

    All clients share the one link, its rate and its queue.
    """
    import asyncio

    from outrider_netsim.cli.link_controls import link_of

    at = parse_address("--listen", options.listen)
    parse_address("--upstream", options.upstream)
    profile = link_profile(options, options.outage, options.trace)
    if options.trace:
        console.print(profile.source, soft_wrap=True, markup=False)
    link = link_of(options, profile, options.upstream, options.engine, at)
    try:
        asyncio.run(_run(link, options, profile.outages))
    except OSError as error:
        reason = error.strerror or error
        raise ProfileError(
            f"cannot listen on {options.listen}: {reason}. Choose another port, or 0 for a free one."
        ) from error


async def _run(link: Link, options: ProxyOptions, outages: Sequence[Outage]) -> None:
    import asyncio

    from outrider_netsim.cli.control import controllable
    from outrider_netsim.cli.link_controls import LinkControls, announced_outages, reported

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with link:
        controls = LinkControls(link, console)
        console.print(f"{link.address} -> {options.upstream} through {introduction(link)}", soft_wrap=True)
        if sys.stdin.isatty():
            console.print("Enter cuts the link and restores it; Ctrl-C ends.")
            loop.add_reader(sys.stdin.fileno(), controls.toggle)
        async with (
            reported(options.report, controls, link),
            controllable(controls, link, console),
            announced_outages(controls, link, outages, options.outage),
        ):
            await link.while_up(stopped.wait())
        console.print(totals(link.stats, link.profile), soft_wrap=True)
