"""The command: its life as a process, and its errors in one line with exit code 2."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_targets import build
from typer.testing import CliRunner

from outrider_models.bundling import make_bundle
from outrider_server.cli.app import app
from outrider_server.cli.serving import StopSignals

COMMAND = [sys.executable, "-c", "from outrider_server.cli.app import main; main()"]


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("target")
    build("llama").save_pretrained(directory)
    return directory


def serve(*options: str):
    result = CliRunner().invoke(app, ["serve", *options])
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "/nowhere"], "/nowhere: no such directory"),
        (["--dtype", "int4"], "dtype=int4: need one of auto, float32, bfloat16, float16"),
        (["--device", "abacus"], "device=abacus"),
        (["--session-ttl", "-1"], "session_ttl_s=-1.0: need at least 0"),
        (["--set", "max-nodes=300"], "max_nodes=300: need 1 to 255"),
        (["--max-context", "1000"], "max_context=1000: need 2 to 512"),
        (["--drafter", "/nowhere"], "/nowhere: no such directory"),
        (["--pace", "laptop"], "pace laptop: need a .toml file or one of"),
        (["--pace", "/nowhere/my.toml"], "/nowhere/my.toml: cannot be read"),
        (["--server-draft"], "server_draft needs a drafter, and none ships for"),
        (["--kv-memory", "900TiB"], "kv_memory=900TiB: need at most"),
        (["--host", "203.0.113.1", "--port", "1", "--open-to-network"], "cannot listen on 203.0.113.1:1"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_2(options, message, target_dir):
    code, text = serve("--target", str(target_dir), *options)
    assert code == 2
    assert message in text
    assert text.count("\n") == 1


def test_an_edge_bundle_is_no_target(target_dir, tmp_path):
    make_bundle(target_dir, "lookup", "int8", tmp_path / "bundle")
    code, heard = serve("--target", str(tmp_path / "bundle"))
    assert code == 2
    assert "an edge bundle, which has no layers" in heard


def test_a_port_in_use(target_dir):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = serve("--target", str(target_dir), "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "the port is in use" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_either_signal_stops_it(number):
    stop = StopSignals(drain_s=1e5)
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(number)
    await asyncio.wait_for(stop.first.wait(), 20)
    assert not stop.second.is_set()
    signal.set_wakeup_fd(-1)
    for each, former in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        signal.signal(each, former)


def test_it_says_when_it_is_ready_and_stops_on_a_signal(target_dir, tmp_path):
    ready = tmp_path / "ready.json"
    options = ["serve", "--target", str(target_dir), "--port", "0", "--threads", "1", "--ready-file", str(ready)]
    with subprocess.Popen([*COMMAND, *options], stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()  # blocks until it is ready
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
    about = json.loads(ready.read_text())
    offers = "features for last-hidden, edge bundles"
    assert line == f"outrider-server: ready on {about['address']}, target {target_dir.name}, {offers}\n"
    assert about["taps"] == [{"fingerprint": "last-hidden:32", "family": "last-hidden", "width": 32}]
    assert about["pace"] is None
    assert rest == ""
    assert process.returncode == 0
