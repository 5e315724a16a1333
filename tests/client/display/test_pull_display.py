"""Pulls on a terminal and in a pipe."""

import io
from pathlib import Path

from rich.console import Console

from outrider_client.display.pull_display import TextPullDisplay
from outrider_client.pull.pull import BytesPulled, FilePulled, Pulled, PullStarted, PullWaiting

STARTED = PullStarted("0" * 64, "llama", "moa", "int8", 2_000_000, 500_000)
PULLED = Pulled(Path("/there"), "0" * 64, "llama", "ab", "moa", "int8", 2_000_000, True)
EVENTS = [PullWaiting("gone", 0.1), PullWaiting("gone", 0.2), STARTED, BytesPulled(1_500_000), FilePulled("x"), PULLED]


def shown(*, terminal: bool) -> tuple[str, str]:
    progress, out = io.StringIO(), io.StringIO()
    display = TextPullDisplay(Console(file=progress, force_terminal=terminal, width=120, highlight=False), out)
    for event in EVENTS:
        display.show(event)
    display.close()
    return progress.getvalue(), out.getvalue()


def test_on_a_pipe():
    progress, out = shown(terminal=False)
    assert progress == "gone; trying again\n500,000 of 2,000,000 bytes are here already\n"
    assert out == "/there: 2,000,000 bytes, drafter moa, int8, for target llama (ab)\n"


def test_on_a_terminal():
    progress, _ = shown(terminal=True)
    assert progress.count("gone; trying again") == 1
    assert "llama, moa, int8" in progress
    assert "2.0/2.0 MB" in progress
