"""The commands `outrider-netsim run` and `clean`: exit statuses, signals, output, and nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_netsim import link as link_module
from outrider_netsim.cli import run as cli_run
from outrider_netsim.cli.app import app
from outrider_netsim.cli.link_lines import totals
from outrider_netsim.core.errors import EngineError
from outrider_netsim.impairments.path import LinkStats, PathStats
from outrider_netsim.link import Link

NETSIM = [sys.executable, "-m", "outrider_netsim.cli.app"]


def run(*arguments, engine, **options):
    """Run the command as a process, with stderr captured separately."""
    command = [*NETSIM, "run", "--profile", "lan", "--engine", engine, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def invoke(*arguments):
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_exit_status_is_the_commands(engine, script, status):
    done = run("--", "sh", "-c", f"echo out; echo err >&2; {script}", engine=engine)
    assert done.returncode == status
    assert done.stdout == "out\n"
    said = done.stderr.splitlines()
    assert f"engine {engine}: as asked" in said[0]
    assert "err" in said
    assert said[-1].startswith("outrider-netsim: 0 connections; up ")


def test_input_folder_and_environment_are_the_commands(engine, tmp_path):
    script = "cat; pwd; echo $GIVEN"
    environment = os.environ | {"GIVEN": "given"}
    done = run("--quiet", "--", "sh", "-c", script, engine=engine, input="in\n", cwd=tmp_path, env=environment)
    assert done.stdout.splitlines() == ["in", str(tmp_path), "given"]
    assert done.stderr == ""


@pytest.mark.parametrize(("command", "status"), [("no-such-command-of-ours", 127), ("/etc/passwd", 126)])
def test_what_cannot_be_executed_ends_as_in_a_shell(engine, command, status):
    done = run("--", command, engine=engine)
    assert done.returncode == status
    assert f"{command}: " in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_to_the_command_and_the_command_decides(engine, number):
    script = f"trap 'echo got it; exit 5' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.05; done"
    command = [*NETSIM, "run", "--profile", "lan", "--engine", engine, "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, said = process.communicate(timeout=30)
    assert (process.returncode, out) == (5, "got it\n"), said
    assert "connections" in said


def test_nothing_survives_a_killed_run(engine):
    marker = f"outlived-{os.getpid()}-{engine}"
    script = f"echo ready; exec sleep 1000 # {marker}"
    command = [*NETSIM, "run", "--profile", "lan", "--engine", engine, "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"MARKER": marker}) as process:
        assert process.stdout.readline() == "ready\n"
        assert marked(marker)
        process.kill()
    give_up_at = time.monotonic() + 20
    while marked(marker) and time.monotonic() < give_up_at:
        time.sleep(0.02)
    assert marked(marker) == []


def marked(marker: str) -> list[int]:
    """Return the living processes with this marker in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"MARKER={marker}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_link_can_be_described_without_a_profile(engine):
    command = [*NETSIM, "run", "--delay", "3ms", "--rate", "5mbit/20mbit", "--seed", "7", "--engine", engine]
    done = subprocess.run([*command, "--", "true"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "plain with delay 3ms, rate 5mbit/20mbit, mean round trip 6.0 ms; seed 7, cubic; engine" in done.stderr


def test_copies_of_a_command_run_at_once_over_one_link(engine, tmp_path):
    """Each waits for the file of the next: one after the other would never end."""
    script = "touch $OUTRIDER_CLIENT; while ! test -e $(((OUTRIDER_CLIENT + 1) % 3)); do sleep 0.02; done; "
    done = run(
        "--clients", "3", "--", "sh", "-c", script + "exit $((OUTRIDER_CLIENT * 4))", engine=engine, cwd=tmp_path
    )
    assert done.returncode == 4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1", "2"]


def test_recordings_are_written_where_they_can_be_and_refused_where_not(engine, tmp_path):
    log, capture = tmp_path / "x.csv", tmp_path / "x.pcapng"
    recording = ["--packet-log", log] if engine == "proxy" else ["--packet-log", log, "--pcap", capture]
    assert run(*recording, "--", "true", engine=engine).returncode == 0
    assert log.read_text() == "number,direction,bytes,entered_s,left_s,fate\n"
    assert capture.exists() is (engine != "proxy")
    refused = run("--packet-log", "/no/such/folder/x.csv", "--", "true", engine=engine)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "packet log /no/such/folder/x.csv: cannot be written" in refused.stderr


def test_a_signal_goes_to_every_copy(engine):
    script = "trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    command = [*NETSIM, "run", "--delay", "1ms", "--clients", "2", "--engine", engine, "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=30)
    assert (process.returncode, out) == (5, "got it\n" * 2), said


def test_outages_are_printed_as_they_come(engine):
    done = run("--outage", "50ms@0s", "--outage", "50ms@200ms", "--", "sleep", "0.5", engine=engine)
    assert re.findall("link (cut|restored)", done.stderr) == ["cut", "restored"] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "6g"], "'6g' is unknown"),
        (["--profile", "lan", "--outage", "3"], "need DURATION@START"),
        (["--profile", "lan", "--outage", "3s@1s", "--outage", "3s@2s"], "starts before the one at 1 s ends"),
        (["--profile", "lan", "--upstream", "50051"], "--upstream '50051': need HOST:PORT"),
        (["--profile", "lan", "--upstream", "127.0.0.1:99999"], "--upstream port=99999: need 1 to 65535"),
        (["--profile", "lan", "--clients", "0"], "--clients"),
        (["--delay", "40"], "--delay=40: need a duration such as 40ms"),
        (["--profile", "lan", "--engine", "netem"], "'netem' is not one of"),
        (["--profile", "missing.toml"], "missing.toml"),
        ([], "need --profile NAME, or a link described by --delay"),
    ],
)
def test_bad_arguments_end_with_2_before_anything_is_made(monkeypatch, arguments, message):
    monkeypatch.setattr(Link, "start", None)
    result = invoke("run", *arguments, "--", "true")
    assert result.exit_code == 2
    assert message in re.sub(r"[\s│]+", " ", result.stderr)


def test_without_privileges_the_relay_is_named_as_the_remedy(monkeypatch):
    def refuses(*_, **__):
        raise EngineError("the kernel gives no namespaces")

    monkeypatch.setattr(link_module, "build_engine", refuses)
    result = invoke("run", "--profile", "lan", "--", "true")
    assert result.exit_code == 1
    assert "kernel, tun: the kernel gives no namespaces. Or write {link}" in result.stderr
    assert "{link} where COMMAND takes the server's address" in result.stderr
    result = invoke("run", "--profile", "lan", "--engine", "tun", "--", "true")
    assert result.exit_code == 1
    assert "{link}" not in result.stderr


def test_auto_takes_the_relay_only_for_a_command_that_names_the_link():
    assert cli_run._engines("auto", ["client", "--server", "{link}"]) == ("kernel", "tun", "proxy")
    assert cli_run._engines("auto", ["client"]) == ("kernel", "tun")
    assert cli_run._engines("proxy", ["client"]) == ("proxy",)


def test_the_relay_says_what_goes_through_it():
    said = run("--", "true", engine="proxy").stderr
    assert "(OUTRIDER_LINK_ADDRESS) goes through the link" in said
    assert "OUTRIDER_LINK_ADDRESS" not in run("--", "echo", "{link}", engine="proxy").stderr


def test_totals_name_only_what_was_lost():
    stats = LinkStats(PathStats(9, 5, 3, 0, 1, 900, 500), PathStats(), 2)
    assert totals(stats) == (
        "2 connections; up 500 bytes in 5 packets, 3 lost, 1 in outages; down 0 bytes in 0 packets"
    )


def test_clean_finds_nothing_where_nothing_is(monkeypatch):
    monkeypatch.setattr("outrider_netsim.namespaces.leftovers.find_leftovers", list)
    result = invoke("clean")
    assert (result.exit_code, result.output) == (0, "nothing was left behind\n")


def test_clean_prints_what_it_did(monkeypatch):
    said = ["removed process 7 (sleep)", "could not remove interface outrider0: denied; run as root"]
    monkeypatch.setattr("outrider_netsim.namespaces.leftovers.remove_leftovers", lambda: said)
    result = invoke("clean")
    assert (result.exit_code, result.output.splitlines()) == (1, said)
