"""Consoles of all commands: results go to standard output, everything else to standard error."""

from __future__ import annotations

from outrider_proto.terminal.console import TerminalConsole

console = TerminalConsole(highlight=False)
errors = TerminalConsole(stderr=True, highlight=False)
