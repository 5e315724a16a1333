"""The command `outrider-netsim`: list, show, trace, clean and proxy, and what all commands refuse."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from outrider_netsim.cli.app import app
from outrider_netsim.link import Link
from outrider_netsim.profiles.builtin import PROFILES
from outrider_netsim.profiles.profile_files import load_profile
from outrider_netsim.profiles.trace_files import load_trace

PROXY = [sys.executable, "-m", "outrider_netsim.cli.app", "proxy"]
RELAY = ("proxy", "--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:7401")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--profile", "6g", "--", "true"], "'6g' is unknown: choose one of paper-5g"),
        (["run", "--profile", "lan", "--outage", "3", "--", "true"], "need DURATION@START"),
        (["run", "--profile", "lan", "--clients", "0", "--", "true"], "clients=0: need at least 1"),
        (["run", "--profile", "lan", "--engine", "netem", "--", "true"], 'engine="netem": input should be'),
        (["run", "--profile", "lan", "--set", "ordr=1", "--", "true"], "ordr: no such option; did you mean in-order?"),
        (["run", "--profile", "missing.toml", "--", "true"], "missing.toml: cannot be read"),
        (["run", "--", "true"], "need --profile NAME, or a link described by --delay"),
        (["run", "--profile", "lan"], "COMMAND is missing: write it after --"),
        ([*RELAY, "--profile", "lan", "--listen", "7402"], "--listen '7402': need HOST:PORT"),
        ([*RELAY, "--profile", "lan", "--upstream", "127.0.0.1:99999"], "upstream port=99999"),
        (["proxy", "--listen", "127.0.0.1:0"], "upstream: missing"),
        (["probe", "--profile", "lan", "--set", "packets=1"], "packets=1: need 2 to"),
        (["show", "6g"], "choose one of paper-5g"),
        (["trace", "generate", "/no/x.csv", "--mbps", "0"], "rate_bps=0"),
    ],
)
def test_bad_arguments_end_with_2_and_a_remedy_before_anything_is_made(monkeypatch, arguments, message):
    monkeypatch.setattr(Link, "start", None)
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_show_describes_every_profile_and_a_file_of_ones_own(tmp_path):
    for name, profile in PROFILES.items():
        shown = run("show", name)
        assert shown.exit_code == 0
        for expected in ("mean, deviation", f"{profile.up.mean_delay_ms:.2f}", profile.source):
            assert expected in shown.output
    (tmp_path / "t.csv").write_text("time_s,loss\n0,0.1\n")
    both = '[both]\nbursts = {p = 0.1, r = 0.4}\ntrace = "t.csv"'
    (tmp_path / "mine.toml").write_text(f'outages = ["1s@5s/30s"]\n{both}\n')
    shown = run("show", tmp_path / "mine.toml").output
    for expected in ("1s@5s/30s", "20.00%, in bursts of 2", "a trace replaces", "no limit"):
        assert expected in shown
    (tmp_path / "x.toml").write_text(run("show", "train", "--toml").output)
    assert load_profile(tmp_path / "x.toml") == PROFILES["train"]


@pytest.mark.parametrize("name", ["x.trace", "x.csv"])
def test_generated_traces_check_and_repeat_by_seed(tmp_path, name):
    file, again = tmp_path / name, tmp_path / f"again-{name}"
    for each in (file, again):
        made = run("trace", "generate", each, "--seconds", 5, "--mbps", 8, "--seed", 3)
        assert made.exit_code == 0
        assert "in 5 s" in made.output
    assert file.read_bytes() == again.read_bytes()
    checked = run("trace", "check", file, again)
    assert checked.exit_code == 0
    assert checked.output.count("rate, Mbit/s") == 2
    load_trace(file)
    (tmp_path / "bad.trace").write_text("1\n5\n3\n")
    refused = run("trace", "check", tmp_path / "bad.trace")
    assert refused.exit_code == 2
    assert "bad.trace, line 3: 3 comes after 5" in refused.stderr


def test_what_experts_set_is_listed():
    listed = run("run", "--set", "list").output
    names = re.findall(r"^([\w-]+):", listed, re.MULTILINE)
    assert names == ["distribution", "queue", "in-order", "seed", "congestion", "pcap", "packet-log", "quiet"]


def test_clean_prints_what_it_did(monkeypatch, tmp_path):
    monkeypatch.setattr("outrider_netsim.namespaces.processes.find_leftovers", list)
    monkeypatch.setattr("outrider_netsim.cli.control._folder", lambda: tmp_path)
    (tmp_path / "99999999.sock").touch()  # of a link that was killed
    assert run("clean").output.replace("\n", "") == f"removed {tmp_path}/99999999.sock"
    result = run("clean")
    assert (result.exit_code, result.output) == (0, "nothing was left behind\n")
    said = ["removed process 7 (sleep)", "could not remove process 8 (sh): it did not end; run as root"]
    monkeypatch.setattr("outrider_netsim.namespaces.processes.remove_leftovers", lambda: said)
    result = run("clean")
    assert (result.exit_code, result.output.splitlines()) == (1, said)


def test_a_port_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(*RELAY, "--listen", address, "--profile", "lan")
    assert result.exit_code == 2
    assert f"cannot listen on {address}" in result.stderr


@pytest.mark.parametrize("engine", ["proxy", pytest.param("tun", marks=[pytest.mark.root, pytest.mark.slow])])
def test_the_relay_serves_its_clients_until_it_is_stopped(engine):
    with socket.create_server(("127.0.0.1", 0)) as server:
        upstream = f"127.0.0.1:{server.getsockname()[1]}"
        link = ["--delay", "1ms", "--engine", engine, "--outage", "50ms@0s"]
        with subprocess.Popen(
            [*PROXY, "--listen", "127.0.0.1:0", "--upstream", upstream, *link],
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True},
        ) as process:
            said = process.stdout.readline()
            if not said:
                pytest.skip(process.stderr.read())
            assert "link cut" in process.stdout.readline()
            assert "link restored" in process.stdout.readline()
            host, port = said.split(" ")[0].split(":")
            for _ in range(2):
                threading.Thread(target=echo_once, args=(server,), daemon=True).start()
                with socket.create_connection((host, int(port)), timeout=10) as client:
                    client.sendall(b"hello")
                    assert client.recv(5) == b"hello"
            process.send_signal(signal.SIGTERM)
            assert "2 connections; up " in process.stdout.read()
        assert process.returncode == 0


def echo_once(server):
    connection, _ = server.accept()
    with connection:
        connection.sendall(connection.recv(5))


def test_enter_in_a_terminal_cuts_and_restores():
    pty = pytest.importorskip("pty", reason="no pseudo-terminals here")
    ours, theirs = pty.openpty()
    options = ["--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:1", "--profile", "lan"]
    with (
        os.fdopen(ours, "wb", buffering=0) as keyboard,
        subprocess.Popen([*PROXY, *options], stdin=theirs, stdout=subprocess.PIPE, text=True) as process,
    ):
        os.close(theirs)
        assert "through lan" in process.stdout.readline()
        assert "Enter cuts" in process.stdout.readline()
        for expected in ("link cut", "link restored"):
            keyboard.write(b"\n")
            assert expected in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert "0 connections" in process.stdout.read()
    assert process.returncode == 0
