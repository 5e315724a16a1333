"""Cut and restore a link, with a line on the console each time."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console

from outrider_netsim.profiles.outages import Cuttable


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
