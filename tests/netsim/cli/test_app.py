"""The command `outrider-netsim`: what it lists, relays and refuses."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from outrider_netsim.cli.app import app

COMMAND = [sys.executable, "-c", "from outrider_netsim.cli.app import main; main()", "proxy"]


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def test_list_shows_every_profile():
    shown = run("list").output
    for expected in ("paper-5g", "paper-4g", "lan", "30.7 ms", "53.6 ms", "2410.03804"):
        assert expected in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--profile": "6g"}, "choose one of paper-5g"),
        ({"--listen": "7402"}, "--listen '7402': need HOST:PORT"),
        ({"--upstream": "host:http"}, "--upstream 'host:http': need HOST:PORT"),
        ({"--upstream": "127.0.0.1:99999"}, "upstream port=99999"),
        ({"--outage": "3"}, "need DURATION@START"),
    ],
)
def test_bad_arguments_end_with_2_and_a_remedy(change, message):
    options = {"--listen": "127.0.0.1:0", "--upstream": "127.0.0.1:7401", "--profile": "lan"} | change
    result = run("proxy", *(part for option in options.items() for part in option))
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_port_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("proxy", "--listen", address, "--upstream", "127.0.0.1:1", "--profile", "lan")
    assert result.exit_code == 2
    assert f"cannot listen on {address}" in result.stderr


def test_the_command_relays_until_it_is_stopped():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=echo_once, args=(server,), daemon=True).start()
        upstream = f"127.0.0.1:{server.getsockname()[1]}"
        options = ["--listen", "127.0.0.1:0", "--upstream", upstream, "--profile", "lan", "--outage", "50ms@0s"]
        with subprocess.Popen(
            [*COMMAND, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as process:
            address = process.stdout.readline().split(" ")[0]
            assert "link cut" in process.stdout.readline()
            assert "link restored" in process.stdout.readline()
            host, port = address.split(":")
            with socket.create_connection((host, int(port)), timeout=10) as client:
                client.sendall(b"hello")
                assert client.recv(5) == b"hello"
            process.send_signal(signal.SIGTERM)
            assert "1 connections; up " in process.stdout.read()
        assert process.returncode == 0


def test_clients_share_a_link_of_real_packets():
    with socket.create_server(("127.0.0.1", 0)) as server:
        upstream = f"127.0.0.1:{server.getsockname()[1]}"
        options = ["--listen", "127.0.0.1:0", "--upstream", upstream, "--delay", "1ms", "--engine", "tun"]
        with subprocess.Popen(
            [*COMMAND, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            said = process.stdout.readline()
            if not said:
                pytest.skip(process.stderr.read())
            host, port = said.split(" ")[0].split(":")
            for _ in range(2):
                threading.Thread(target=echo_once, args=(server,), daemon=True).start()
                with socket.create_connection((host, int(port)), timeout=10) as client:
                    client.sendall(b"hello")
                    assert client.recv(5) == b"hello"
            process.send_signal(signal.SIGTERM)
            assert "2 connections; up " in process.stdout.read()
        assert process.returncode == 0


def test_enter_in_a_terminal_cuts_and_restores():
    pty = pytest.importorskip("pty", reason="no pseudo-terminals here")
    ours, theirs = pty.openpty()
    options = ["--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:1", "--profile", "lan"]
    with (
        os.fdopen(ours, "wb", buffering=0) as keyboard,
        subprocess.Popen([*COMMAND, *options], stdin=theirs, stdout=subprocess.PIPE, text=True) as process,
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


def echo_once(server):
    connection, _ = server.accept()
    with connection:
        connection.sendall(connection.recv(5))
