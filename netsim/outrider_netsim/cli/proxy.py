"""`outrider-netsim proxy`: keep a link open for clients until it is stopped."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.link_lines import introduction, totals
from outrider_netsim.cli.link_options import (
    LINK_PANEL,
    TRAFFIC_PANEL,
    CongestionOption,
    DelayOption,
    DistributionOption,
    InOrderOption,
    JitterOption,
    LinkAdjustments,
    LossOption,
    OutageOption,
    PacketLogOption,
    PcapOption,
    ProfileOption,
    QueueOption,
    RateOption,
    SeedOption,
    link_profile,
)
from outrider_netsim.cli.terminal import console, exit_on_error, fail
from outrider_netsim.core.addresses import parse_address
from outrider_netsim.core.engine_names import DEFAULT_CONGESTION, EngineChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider_netsim.link import Link
    from outrider_netsim.profiles.outages import Outage

app = typer.Typer()


@app.command()
def proxy(
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address for clients to connect to; port 0 picks a free one, 0.0.0.0 lets other machines in.",
            rich_help_panel=TRAFFIC_PANEL,
        ),
    ],
    upstream: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address of the server behind the link.", rich_help_panel=TRAFFIC_PANEL),
    ],
    profile: ProfileOption = None,
    delay: DelayOption = None,
    jitter: JitterOption = None,
    distribution: DistributionOption = None,
    loss: LossOption = None,
    rate: RateOption = None,
    queue: QueueOption = None,
    in_order: InOrderOption = None,
    outage: OutageOption = None,
    congestion: CongestionOption = DEFAULT_CONGESTION,
    seed: SeedOption = None,
    engine: Annotated[
        EngineChoice,
        typer.Option(
            help="Engine of the link: proxy needs no privileges; kernel and tun carry real packets.",
            rich_help_panel=LINK_PANEL,
        ),
    ] = "proxy",
    pcap: PcapOption = None,
    packet_log: PacketLogOption = None,
) -> None:
    """Relay TCP through an emulated link until Ctrl-C; in a terminal, Enter cuts and restores it.

    All clients share the one link, its rate and its queue.
    """
    import asyncio

    from outrider_netsim.cli.link_controls import without_cuts
    from outrider_netsim.link import Link

    with exit_on_error():
        at = parse_address("--listen", listen)
        parse_address("--upstream", upstream)
        adjustments = LinkAdjustments(delay, jitter, distribution, loss, rate, queue, in_order)
        shaped = link_profile(profile, adjustments, outage)
        started = without_cuts(shaped)
        link = Link(
            started,
            upstream,
            engine,
            seed,
            host=at.host,
            port=at.port,
            congestion=congestion,
            pcap=pcap,
            packet_log=packet_log,
        )
        try:
            asyncio.run(_run(link, upstream, shaped.outages))
        except OSError as error:
            fail(f"cannot listen on {listen}: {error.strerror or error}. Choose another port, or 0 for a free one.")


async def _run(link: Link, upstream: str, outages: Sequence[Outage]) -> None:
    import asyncio

    from outrider_netsim.cli.link_controls import LinkControls, announced_outages

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with link:
        controls = LinkControls(link, console)
        console.print(f"{link.address} -> {upstream} through {introduction(link)}", soft_wrap=True)
        if sys.stdin.isatty():
            console.print("Enter cuts the link and restores it; Ctrl-C ends.")
            loop.add_reader(sys.stdin.fileno(), controls.toggle)
        async with announced_outages(controls, outages):
            await stopped.wait()
        console.print(totals(link.stats))
