"""Cut and restore a link, with a line on the console each time."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from rich.console import Console

from outrider_netsim.profiles.outages import Cuttable, Outage, run_outages
from outrider_netsim.profiles.profile import Profile


class LinkControls:
    """Passes `cut` and `restore` on to `link` and prints them with the seconds since its creation."""

    def __init__(self, link: Cuttable, console: Console) -> None:
        self._link = link
        self._console = console
        self._is_cut = False
        self._started_at = asyncio.get_running_loop().time()

    def cut(self) -> None:
        self._link.cut()
        self._is_cut = True
        self._print("[bold red]link cut[/]")

    def restore(self) -> None:
        self._link.restore()
        self._is_cut = False
        self._print("[bold green]link restored[/]")

    def toggle(self) -> None:
        """Handle Enter, or the end of standard input."""
        if not sys.stdin.readline():
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        elif self._is_cut:
            self.restore()
        else:
            self.cut()

    def _print(self, text: str) -> None:
        self._console.print(f"{asyncio.get_running_loop().time() - self._started_at:8.2f} s  {text}")


def without_cuts(profile: Profile) -> Profile:
    """Return a profile for an engine whose link `announced_outages` cuts; outages that hold packets stay."""
    return replace(profile, outages=tuple(outage for outage in profile.outages if outage.hold))


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
