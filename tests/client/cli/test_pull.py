"""The offer to pull what a server's models need, on a pseudo-terminal and from a real server."""

from __future__ import annotations

import os
import sys

import pytest

from .terminal import Terminal

pytestmark = pytest.mark.slow

OFFER = ", which is not on this device. Pull it now ("
REFUSAL = "they must be the same: `outrider pull"


@pytest.fixture
def command(server, tmp_path):
    """Makes a command line about the server, and the environment of a device on which nothing was pulled."""
    environment = os.environ | {name: str(tmp_path) for name in ("XDG_DATA_HOME", "XDG_STATE_HOME")}
    environment |= {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "200"}

    def line(*arguments: str) -> tuple[list[str], dict[str, str]]:
        options = ("--server", server.address, "--max-new-tokens", "5", "--set", "link-floor-ms=5000")
        return [sys.executable, "-m", "outrider_client.cli.app", *arguments, *options], environment

    return line


def test_generate_offers_to_pull_and_goes_on(command, server, tmp_path):
    pulled = tmp_path / "outrider" / "bundles"
    terminal = Terminal(*command("generate", "hi"))
    terminal.until(OFFER)
    terminal.type("\x04")
    terminal.until(f"{REFUSAL} {server.address}`")
    assert terminal.ended() == 3
    assert not pulled.exists()
    terminal = Terminal(*command("generate", "hi"))
    terminal.until(OFFER)
    terminal.type("\r")
    terminal.until("the answer is cut after 5 tokens", terminal.until("for target target"))
    assert terminal.ended() == 0
    assert [path.name for path in pulled.iterdir()] == [server.address.replace(":", "_")]
