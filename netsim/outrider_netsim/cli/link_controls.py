"""Create the link that a command keeps open, and cut and restore it, with a line on the console each time."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from rich.console import Console

from outrider_netsim.cli.link_options import OpenLinkOptions
from outrider_netsim.core.addresses import FREE_PORT, Address
from outrider_netsim.core.engine_names import EngineChoice, EngineName
from outrider_netsim.link import Link
from outrider_netsim.profiles.outages import Outage, run_outages
from outrider_netsim.profiles.profile import Profile


class LinkControls:
    """Passes `cut` and `restore` on to `link` and prints them with the seconds since its creation."""

    def __init__(self, link: Link, console: Console) -> None:
        self._link = link
        self._console = console
        self._started_at = asyncio.get_running_loop().time()

    def cut(self) -> None:
        self._link.cut()
        self._print("[bold red]link cut[/]")

    def restore(self) -> None:
        self._link.restore()
        self._print("[bold green]link restored[/]")

    def toggle(self) -> None:
        """Handle Enter, or the end of standard input."""
        if not sys.stdin.readline():
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        elif self._link.is_cut:
            self.restore()
        else:
            self.cut()

    def _print(self, text: str) -> None:
        self._console.print(f"{asyncio.get_running_loop().time() - self._started_at:8.2f} s  {text}")


def link_of(
    options: OpenLinkOptions,
    profile: Profile,
    upstream: str,
    engine: EngineChoice | Sequence[EngineName],
    listen: Address = FREE_PORT,
) -> Link:
    """Create the link, whose packets `announced_outages` drops; outages that hold packets are its own."""
    return Link(
        replace(profile, outages=tuple(outage for outage in profile.outages if outage.hold)),
        upstream,
        engine,
        options.seed,
        host=listen.host,
        port=listen.port,
        congestion=options.congestion,
        pcap=options.pcap,
        packet_log=options.packet_log,
    )


@contextlib.asynccontextmanager
async def announced_outages(controls: LinkControls, outages: Sequence[Outage]) -> AsyncIterator[None]:
    """Apply and print the outages that drop packets, counting from now, until the end of the block."""
    dropping = [outage for outage in outages if not outage.hold]
    planned = asyncio.create_task(run_outages(controls, dropping))
    try:
        yield
    finally:
        planned.cancel()
        await asyncio.gather(planned, return_exceptions=True)
