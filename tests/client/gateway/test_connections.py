"""Connections and bodies that strangers hold open: bounded, ended in time, and in nobody's way."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from outrider_client.gateway import middleware, serving
from outrider_client.gateway.errors import ApiError
from outrider_proto.addresses import free_port

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HALVES = {  # what a caller sends, and then nothing more, and the statuses of what it is answered in the end
    "nothing": (b"", [408]),
    "a byte": (b"G", [408]),
    "headers": (GET + b"X-A: ", [408]),
    "a body": (POST + b"Content-Length: 9\r\n\r\n{", [408]),
    "chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", [408]),
    "a body that is not read": (b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", [405]),
    "the next request": (GET + b"\r\nGET /hea", [200]),
}
each_half = pytest.mark.parametrize(("sent", "statuses"), HALVES.values(), ids=HALVES)
MOST = 8


@pytest.fixture
def connect():
    """Connect to a gateway and send some bytes. All is closed at the end."""
    with contextlib.ExitStack() as stack:

        def connected(gateway, sent: bytes = b"", timeout: float = 30) -> socket.socket:
            address = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
            caller = stack.enter_context(socket.create_connection(address, timeout=timeout))
            caller.sendall(sent)
            return caller

        yield connected


def answers_until_end(caller: socket.socket) -> bytes:
    """Return all that comes until the gateway closes the connection."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := caller.recv(65536):
            got += piece
    return got


@pytest.fixture
def small(start_gateway, server, monkeypatch):
    """A gateway with room for a few connections."""
    monkeypatch.setattr(serving, "_MOST_CONNECTIONS", MOST)
    with start_gateway(server) as running:
        yield running


@each_half
def test_half_requests_keep_nobody_out(small, connect, sent, statuses):
    halves = []
    for _ in range(3 * MOST):
        halves.append(connect(small, sent))
        assert small.get("/health")["model"] == "outrider"
    for caller in halves[:MOST]:  # the oldest have made room
        answers_until_end(caller)


def test_connections_that_are_answered_are_not_ended_for_others(small, connect):
    stream = b"GET /outrider/link HTTP/1.1\r\nHost: localhost\r\n\r\n"
    streams = [connect(small, stream) for _ in range(MOST // 2)]  # one address has half of the room
    assert all(caller.recv(12) == b"HTTP/1.1 200" for caller in streams)
    assert answers_until_end(connect(small)).startswith(b"HTTP/1.1 503 ")
    assert streams[0].recv(65536)
    streams.pop().close()
    for _ in range(100):  # until the gateway has seen it
        with contextlib.suppress(OSError, http.client.HTTPException):
            assert small.get("/health")["model"] == "outrider"
            return
    pytest.fail("no room")


@each_half
def test_each_part_of_a_request_has_a_deadline(start_gateway, server, connect, monkeypatch, sent, statuses):
    for name in ("_HEADERS_S", "_BODY_S", "_KEEP_ALIVE_S"):
        monkeypatch.setattr(serving, name, 0.3)
    with start_gateway(server) as gateway:
        got = answers_until_end(connect(gateway, sent))
        assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", got)] == statuses
        assert gateway.get("/health")["model"] == "outrider"


def test_a_caller_that_reads_nothing_is_ended(start_gateway, server, connect, monkeypatch):
    monkeypatch.setattr(serving, "_STUCK_S", 0.3)
    with start_gateway(server) as gateway:
        caller = connect(gateway)
        with pytest.raises(ConnectionError):
            ask_for_ever(caller)
        assert gateway.get("/health")["model"] == "outrider"


def ask_for_ever(caller: socket.socket) -> None:
    while True:
        caller.sendall(b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)


async def test_bodies_have_so_much_room_together(monkeypatch):
    monkeypatch.setattr(middleware, "_MAX_HELD_BYTES", 200)  # of which one address has half
    answered: list[str] = []

    async def app(scope, receive, send) -> None:
        while (await receive())["more_body"]:
            pass
        answered.append(scope["client"][0])

    limit = middleware.BodyLimitMiddleware(app)

    def ask(caller: str) -> tuple[asyncio.Queue, asyncio.Task]:
        body: asyncio.Queue = asyncio.Queue()
        scope = {"type": "http", "client": (caller, 1), "headers": []}
        return body, asyncio.create_task(limit(scope, body.get, None))

    def piece(size: int, more: bool = True) -> dict:
        return {"type": "http.request", "body": bytes(size), "more_body": more}

    one, other, third = ask("10.0.0.1"), ask("10.0.0.1"), ask("10.0.0.2")
    await one[0].put(piece(90))
    await third[0].put(piece(90))
    await asyncio.sleep(0)
    await other[0].put(piece(11))
    with pytest.raises(ApiError, match="fill the room") as refused:
        await other[1]
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "5"})
    fourth, fifth = ask("10.0.0.3"), ask("10.0.0.3")
    await fourth[0].put(piece(21))
    with pytest.raises(ApiError, match="fill the room"):
        await fourth[1]
    await one[0].put(piece(5, more=False))
    await one[1]
    await fifth[0].put(piece(99, more=False))  # the room of those that are done
    await fifth[1]
    assert answered == ["10.0.0.1", "10.0.0.3"]
    third[1].cancel()


HANGS = """
import sys, threading
from outrider_client.cli.__main__ import main
from outrider_client.gateway import app
app.parsed_json = lambda *_: threading.Event().wait()
sys.argv = ["outrider", *sys.argv[1:]]
main()
"""


@pytest.fixture
def run_gateway(server, gateway):
    """Start the command in a process of its own, in which every request hangs that has a body; yield it when ready.

    `before`: the beginning of another command that runs it.
    """

    @contextlib.contextmanager
    def running(*before: str):
        port = str(free_port())
        command = [*before, sys.executable, "-c", HANGS, "gateway", "--target", "embedded"]
        command += ["--server", server, "--port", port]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert f":{port}/v1" in process.stderr.readline()
                yield process, type(gateway)(int(port))
            finally:
                process.kill()

    return running


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGTERM, 2)])
def test_a_signal_ends_the_command_whatever_hangs(run_gateway, connect, number, times):
    with run_gateway() as (process, gateway):
        streams = b"GET /outrider/link HTTP/1.1\r\nHost: localhost\r\n\r\n"
        held = [connect(gateway, sent) for sent in (*(sent for sent, _ in HALVES.values()), streams)]
        held.append(connect(gateway, POST + b"Content-Length: 2\r\n\r\n{}"))  # it hangs in a thread
        assert held[-2].recv(12) == b"HTTP/1.1 200"
        started = time.monotonic()
        process.send_signal(number)
        if times == 2:
            assert answers_until_end(held[0]) == b""  # the first one is at work
            process.send_signal(number)
        process.wait(30)
        # A second one takes none of the time that answers in progress have to end.
        assert time.monotonic() - started < (serving._STOP_S if times == 2 else serving._STOP_S + 2)
        assert "Traceback" not in process.stderr.read()


def test_a_command_with_few_descriptors_outlives_many_connections(run_gateway, connect):
    with run_gateway("bash", "-c", 'ulimit -n 120; exec "$@"', "bash") as (process, gateway):
        for _ in range(150):
            connect(gateway, GET + b"X-A: ")
        assert gateway.get("/health")["model"] == "outrider"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert len(process.stderr.read().splitlines()) < 10
        assert process.wait(30) == -signal.SIGTERM
