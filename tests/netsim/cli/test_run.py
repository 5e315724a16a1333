"""The command `outrider-netsim run`: exit statuses, signals, output, and nothing left behind."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from outrider_netsim import link as link_module
from outrider_netsim.cli.app import app
from outrider_netsim.cli.link_controls import LinkControls
from outrider_netsim.core.errors import EngineError
from outrider_netsim.link import Link
from outrider_netsim.namespaces.processes import PROC, descendants
from outrider_netsim.profiles.builtin import PROFILES

CAPTURED = {"capture_output": True, "text": True, "timeout": 60}
NETSIM = [sys.executable, "-m", "outrider_netsim.cli.app"]


def invoke(*arguments, engine):
    return CliRunner().invoke(app, ["run", "--profile", "lan", "--engine", engine, *map(str, arguments)])


def test_copies_of_a_command_run_at_once_over_one_link(engine, tmp_path, monkeypatch):
    """Each waits for the file of the next: one after the other would never end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIVEN", "given")
    script = "echo $GIVEN > $OUTRIDER_CLIENT; while ! test -e $(((OUTRIDER_CLIENT + 1) % 3)); do sleep 0.02; done; "
    link = ("--delay", "3ms", "--rate", "5mbit/20mbit", "--set", "seed=7")
    link += ("--outage", "50ms@0s", "--outage", "50ms@200ms")
    command = script + "sleep 0.4; exit $((OUTRIDER_CLIENT * 4))"
    done = invoke(*link, "--clients", "3", "--", "sh", "-c", command, engine=engine)
    assert done.exit_code == 4
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys("012", "given\n")
    said = done.stderr.splitlines()
    assert "lan with delay 3ms, rate 5mbit/20mbit, mean round trip 6.0 ms; seed 7, cubic; engine" in said[0]
    assert f"engine {engine}: as asked" in said[0]
    assert re.findall("link (cut|restored)", done.stderr) == ["cut", "restored"] * 2
    assert said[-1].startswith("outrider-netsim: 0 connections; up ")


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 0"], 0),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["no-such-command-of-ours"], 127),
        (["/etc/passwd"], 126),
        (["/etc/passwd/x"], 126),
    ],
)
def test_the_exit_status_is_as_in_a_shell_and_in_the_report(command, status, tmp_path):
    done = invoke("--report", tmp_path / "x", "--", *command, engine="proxy")
    assert done.exit_code == json.loads((tmp_path / "x").read_text())["exit_status"] == status
    assert (f"{command[0]}: " in done.stderr) is (status in (126, 127))


def test_a_trace_from_standard_input_leaves_it_open_for_the_command():
    """The number of a closed one would be the next file's, and the command would have none."""
    command = [*NETSIM, "run", "--trace", "-", "--engine", "proxy", "--", "cat"]
    done = subprocess.run(command, input="1\n2\n", **CAPTURED)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_report_that_cannot_be_written_leaves_the_commands_status():
    done = invoke("--report", "/dev/full", "--", "sh", "-c", "exit 7", engine="proxy")
    assert done.exit_code == 7
    assert "--report /dev/full: cannot be written: No space left" in done.stderr


async def test_a_planned_outage_ends_no_cut_by_hand():
    async with Link(PROFILES["lan"], engine="proxy") as link:
        controls = LinkControls(link, Console(quiet=True))
        planned = controls.switch("plan")
        planned.cut()
        controls.by_hand.cut(["up"])
        planned.restore()
        assert link.cut_ways == {"up"}
        controls.by_hand.restore()
        assert not link.is_cut
    assert [(change["change"], *change["ways"]) for change in controls.changes] == [
        ("cut", "up", "down"),
        ("restored", "down"),
        ("restored", "up"),
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_to_every_copy_and_the_command_decides(engine, number):
    name = number.name.removeprefix("SIG")
    script = f"cat; trap 'echo got it; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
    command = [*NETSIM, "run", "--delay", "1ms", "--clients", "2", "--engine", engine, "--", "sh", "-c", script]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        process.send_signal(number)
        out, said = process.communicate(timeout=30)
    assert (process.returncode, out) == (5, "got it\n" * 2), said
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


@pytest.mark.parametrize(
    ("part", "reason"),
    [("packet_pump", "the packet pump has ended (signal 9)"), ("namespace_holder", "the namespace holder has ended")],
)
def test_an_engine_that_ends_ends_the_run_with_its_reason(part, reason, tmp_path):
    link = ["--delay", "1ms", "--engine", "tun", "--report", str(tmp_path / "x")]
    command = [*NETSIM, "run", *link, "--", "sh", "-c", "echo ready; exec sleep 1000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, env=os.environ | {"MARKER": f"{part}-{os.getpid()}"}) as process:
        if process.stdout.readline() != "ready\n":
            pytest.skip(process.communicate()[1])
        (pid,) = (
            row.pid for row in descendants(process.pid) if part.encode() in (PROC / f"{row.pid}/cmdline").read_bytes()
        )
        os.kill(pid, signal.SIGKILL)
        out, said = process.communicate(timeout=30)
    assert (process.returncode, out, marked(f"{part}-{os.getpid()}")) == (1, "", [])
    assert said.splitlines()[1:] == [f"outrider-netsim: {reason}: start the link again"]
    assert json.loads((tmp_path / "x").read_text())["error"] == f"{reason}: start the link again"


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


def test_recordings_are_written_where_they_can_be_and_refused_where_not(engine, tmp_path):
    log, capture = tmp_path / "x.csv", tmp_path / "x.pcapng"
    both = ["--set", f"packet_log={log}", *(["--set", f"pcap={capture}"] if engine != "proxy" else [])]
    done = invoke(*both, "--", "true", engine=engine)
    if engine == "kernel":
        assert done.exit_code == 1
        assert "to record it, use --engine tun" in done.stderr
        return
    assert done.exit_code == 0
    assert log.read_text() == "number,direction,bytes,entered_s,left_s,fate\n"
    assert capture.exists() is (engine != "proxy")
    refused = invoke("--set", "packet_log=/no/such/folder/x.csv", "--", "true", engine=engine)
    assert refused.exit_code == 2
    assert "packet log /no/such/folder/x.csv: cannot be written" in refused.stderr


CONNECT = """
import socket, sys, time
own = socket.create_server(("127.0.0.1", 0))
ports = [own.getsockname()[1] if port == "own" else int(port) for port in sys.argv[1:]]
for port in ports:
    started_at = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5):
            print("slow" if time.perf_counter() - started_at >= 0.12 else "fast")
    except OSError as error:
        print(type(error).__name__, error.errno, "slow" if time.perf_counter() - started_at >= 0.12 else "fast")
"""


@pytest.mark.root
def test_connecting_takes_the_links_time_and_fails_as_the_far_side_does():
    """Over 60 ms each way, to a server that nobody named, to ports where there is none, and within the command."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        port, nobody = server.getsockname()[1], closed.getsockname()[1]
        upstreams = ("--upstream", f"127.0.0.1:{nobody}", "--upstream", "no-such-host.invalid:7")
        link = [*NETSIM, "run", "--engine", "tun", "--delay", "60ms", *upstreams]
        script = ["--", sys.executable, "-c", CONNECT]
        done = subprocess.run([*link, *script, *map(str, (port, nobody, 7, 9, "own"))], **CAPTURED)
        refused, unreachable = "ConnectionRefusedError 111", f"OSError {errno.EHOSTUNREACH}"
        expected = ["slow", f"{refused} slow", f"{unreachable} slow", f"{refused} fast", "fast"]
        assert done.stdout.splitlines() == expected, done.stderr
        assert re.search(r"did not pass the link: 127.0.0.1:9 \(1\), 127.0.0.1:\d+ \(1\); --upstream", done.stderr)
        dead = subprocess.run([*link, "--loss", "100%", *script, str(port)], **CAPTURED)
        assert dead.stdout == "TimeoutError None slow\n"


@pytest.mark.root
def test_a_command_is_held_back_by_the_links_buffers(tmp_path):
    """At 5 Mbit/s with a queue of 100 ms, 62 KB, towards a server that reads everything."""
    script = (
        "import socket, sys, time; own = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); size = 0\n"
        "own.settimeout(0.3)\ntry:\n while True: size += own.send(bytes(65536))\nexcept TimeoutError: print(size)"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        link = [*NETSIM, "run", "--engine", "tun", "--delay", "20ms", "--rate", "5mbit", "--set", "queue=100ms"]
        done = subprocess.run([*link, "--", sys.executable, "-c", script, port], **CAPTURED)
    assert 100_000 < int(done.stdout) < 1_500_000, done.stderr


def test_what_a_command_has_sent_arrives_after_its_end(engine, monkeypatch):
    """As its kernel would see to; where the link is dead, the server learns that there is more."""
    monkeypatch.setattr(link_module, "STALLED_S", 0.5)
    script = (
        "import socket, sys; own = socket.create_connection(sys.argv[1].rsplit(':', 1)); own.recv(1)\n"
        "own.sendall(bytes(20_000)); own.close(); sys.exit(3)"
    )
    arrived = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=receive_twice, args=(server, arrived), daemon=True).start()
        port = server.getsockname()[1]
        command = ("--delay", "40ms", "--upstream", f"127.0.0.1:{port}", "--", sys.executable, "-c", script, "{link}")
        done = invoke(*command, engine=engine)
        dead = invoke("--outage", "up:60s@first", *command, engine=engine)
    assert (done.exit_code, dead.exit_code) == (3, 3)
    assert "before all that COMMAND has sent has arrived" in dead.stderr
    assert "before all" not in done.stderr
    give_up_at = time.monotonic() + 20
    while len(arrived) < 2 and time.monotonic() < give_up_at:
        time.sleep(0.02)
    assert arrived[0] == 20_000
    assert isinstance(arrived[1], ConnectionResetError)


def receive_twice(server, arrived):
    for _ in range(2):
        with server.accept()[0] as client:
            client.send(b"x")
            size = 0
            try:
                while part := client.recv(1 << 16):
                    size += len(part)
            except ConnectionResetError as error:
                arrived.append(error)
            else:
                arrived.append(size)


def test_a_running_link_is_changed_and_reported(engine, tmp_path, monkeypatch):
    """From within the command, as from another terminal; each direction of its own, and from the first byte on."""
    settings = {
        ("delay=5ms/3ms", "loss=1%", "cut=up"): "with delay 5ms/3ms, loss 1%, mean round trip 8.0 ms",
        ("restore", "in-order=true", "delay=2ms"): "with delay 2ms, loss 1%, packets in order, mean",
        ("delay=5",): "--delay=5: need a duration",
        ("cut=left",): "'cut=left': need delay=",
        ("colour=red",): "'colour=red': need delay=",
        (): "with delay 2ms, loss 1%, packets in order, mean",
    }
    script = (
        "import socket, sys; socket.create_connection(sys.argv[1].split(':')).recv(1)\n"
        "from typer.testing import CliRunner\nfrom outrider_netsim.cli.app import app\n"
        f"for words in {list(settings)}:\n"
        f" print(CliRunner().invoke(app, ['set', 'link={os.getpid()}', *words]).output, file=open('said', 'a'))"
    )
    report = tmp_path / "report.json"
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_once, args=(server,)).start()
        link = ["--report", report, "--outage", "down:50ms@first+10ms"]
        link += ["--upstream", f"127.0.0.1:{server.getsockname()[1]}"]
        done = invoke(*link, "--", sys.executable, "-c", script, "{link}", engine=engine)
    said = (tmp_path / "said").read_text()
    for expected in settings.values():
        assert expected in said
    found = json.loads(report.read_text())
    changes = {(change["change"], *change["ways"]) for change in found["changes"]}
    assert changes == {("cut", "down"), ("restored", "down"), ("set", "up", "down"), ("cut", "up"), ("restored", "up")}
    assert (found["engine"], found["exit_status"], found["profile"]["name"]) == (engine, 0, "lan")
    assert found["up"]["packets_in"] >= found["connections"] == 1
    assert done.exit_code == 0, done.stderr
    refused = invoke("--report", "/no/such/folder/x.json", "--", "true", engine=engine)
    assert (refused.exit_code, "--report /no/such/folder/x.json: cannot be written" in refused.stderr) == (2, True)


def answer_once(server):
    with server.accept()[0] as client:
        client.send(b"x")


def test_where_no_link_runs_set_says_so():
    done = CliRunner().invoke(app, ["set", "link=1", "cut"], prog_name="outrider-netsim")
    said = "outrider-netsim: no link runs here as 1: start one with run or proxy\n"
    assert (done.exit_code, done.stderr) == (1, said)


def test_without_privileges_the_relay_is_named_as_the_remedy(monkeypatch):
    def refuses(*_, **__):
        raise EngineError("the kernel gives no namespaces")

    monkeypatch.setattr(link_module, "build_engine", refuses)
    result = invoke("--", "true", engine="auto")
    assert result.exit_code == 1
    assert "kernel, tun: the kernel gives no namespaces. Or write {link}" in result.stderr
    assert "{link} where COMMAND takes the server's address" in result.stderr
    result = invoke("--", "true", engine="tun")
    assert result.exit_code == 1
    assert "{link}" not in result.stderr
