"""Names that a stranger chose, in what each command prints: nothing of them steers a terminal."""

from __future__ import annotations

import io
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from gateway.in_thread import InThread

from outrider_bench.cli.app import main as bench
from outrider_client.cli.app import main as client
from outrider_models.cli.app import main as models
from outrider_netsim.cli.app import main as netsim
from outrider_server import Server, ServerConfig
from outrider_server.cli.app import main as server

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
STEERS = "\x07\x1b\x7f\x9b\r\u2028\u2029\u202a\u202e\u2066\u2069\u061c\u200e\u200f\u200b\U000e0041"
MARKS = "\u061c\u200e\u200f"  # which a table shows
ODD = f"odd{STEERS}[b]name"
PROFILE = """
name = "NAME"
source = "NAME[/x]"
[up]
delay_ms = 1
[down]
delay_ms = 1
"""
KEY = """
[keys."NAME"]
sha256 = "aa"
scopes = ["verify", "NAME"]
comment = "NAME"
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Files and directories of odd names and contents."""
    root = tmp_path_factory.mktemp("odd")
    shutil.copytree(GOLDEN / "target_tiny", root / ODD)
    escaped = "".join(f"\\U{ord(each):08x}" if each in STEERS else each for each in ODD)
    for name, text in {"profile.toml": PROFILE, "keys.toml": KEY, "server.toml": 'target = "NAME"\nNAME = 1\n'}.items():
        (root / name).write_text(text.replace('"NAME"]', f'"{escaped}"]').replace("NAME", escaped), encoding="utf-8")
    (root / f"{ODD}.toml").write_text("x = [")
    (root / f"{ODD}.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def odd_server(places):
    """A server whose target and drafter have odd names."""
    drafter = shutil.copytree(GOLDEN / "moa_tli0" / "drafter", places / "drafters" / ODD)
    config = ServerConfig(str(places / ODD), (str(drafter),), port=0)
    with InThread(lambda: Server.build(config)) as server:
        yield server


COMMANDS = {
    "client, target": (client, ["generate", "--target", "ODD/x", "hi"], "odd"),
    "client, drafter": (client, ["generate", "--target", "ODD", "--drafter", "ODD/x", "hi"], "odd"),
    "client, file": (client, ["generate", "--file", "ODD/x", "hi"], "odd"),
    "client, schema": (client, ["generate", "--json-schema", "ODD.json", "hi"], "odd"),
    "client, another model": (client, ["generate", "--server", "SERVER", "--target", "embedded", "hi"], "target"),
    "describe": (client, ["describe", "--server", "SERVER"], "odd"),
    "pull": (client, ["pull", "SERVER", "--out", "OUT", "--weights", "float32"], "odd"),
    "chat": (client, ["chat", "--server", "SERVER", "--target", "ODD", "--drafter", "lookup"], "odd"),
    "server, target": (server, ["check", "--target", "ODD/x"], "odd"),
    "server, drafter": (server, ["check", "--target", "ODD", "--set", "drafters=ODD/x"], "odd"),
    "server, configuration": (server, ["check", "--config", "DIR/server.toml"], "odd"),
    "server, broken configuration": (server, ["check", "--config", "ODD.toml"], "odd"),
    "keys": (server, ["keys", "list", "--keys", "DIR/keys.toml"], "odd"),
    "keys, file": (server, ["keys", "list", "--keys", "ODD/x"], "odd"),
    "netsim, profile": (netsim, ["show", "DIR/profile.toml"], "odd"),
    "netsim, broken profile": (netsim, ["show", "ODD.toml"], "odd"),
    "netsim, trace": (netsim, ["trace", "check", "ODD.json"], "odd"),
    "models, target": (models, ["bundle", "--target", "ODD/x", "--drafter", "lookup", "--out", "OUT"], "odd"),
    "models, bundle": (models, ["bundle", "--target", "ODD", "--drafter", "lookup", "--out", "ODDOUT"], "odd"),
    "bench, target": (bench, ["trace", "--target", "ODD/x", "--drafter", "lookup", "--prompt-ids", "1"], "odd"),
    "bench, report": (bench, ["show", "ODD.json"], "odd"),
}


@pytest.mark.parametrize(("command", "arguments", "shows"), COMMANDS.values(), ids=COMMANDS)
def test_no_command_prints_what_steers_a_terminal(
    request, places, tmp_path, monkeypatch, capsys, command, arguments, shows
):
    values = {"ODDOUT": str(tmp_path / ODD), "ODD": str(places / ODD), "DIR": str(places), "OUT": str(tmp_path / "out")}
    if any("SERVER" in each for each in arguments):
        values["SERVER"] = request.getfixturevalue("odd_server").address
    for name, value in values.items():
        arguments = [re.sub(rf"(^|=){name}", lambda match: match[1] + value, each) for each in arguments]  # noqa: B023
    monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO("/model\n/nonsense\n"))
    with suppress(SystemExit):
        command()
    heard = "".join(capsys.readouterr())
    assert shows in heard
    assert "Traceback" not in heard
    assert not {each for each in heard if each in STEERS and (command is not netsim or each not in MARKS)}
