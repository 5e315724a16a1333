"""A real `outrider gateway` in a process of its own, and its time from start to first token."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from outrider_proto.addresses import free_port
from outrider_proto.errors import UsageError

_START_TIMEOUT_S = 60.0
_POLL_S = 0.005
_COMMAND = (sys.executable, "-c", "from outrider_client.cli.app import main; main()", "gateway")


class GatewayProcess:
    """An `outrider gateway` with these `options`; use it as a context manager.

    Raises UsageError if it does not connect to the server.
    """

    def __init__(self, server: str, options: Sequence[str] = ()) -> None:
        self.port = free_port()
        self._command = [*_COMMAND, "--server", server, "--port", str(self.port), *options]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        give_up_at = time.monotonic() + _START_TIMEOUT_S
        while self._status() != "ok":
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise UsageError("the gateway did not start, or found no server")
            time.sleep(_POLL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def _status(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return str(json.load(connection.getresponse())["status"])
        except OSError:
            return ""
        finally:
            connection.close()


def cold_start_s(server: str, options: Sequence[str] = ()) -> float:
    """Return the seconds from starting the process to the first token, asked for as soon as it listens."""
    port = free_port()
    started = time.perf_counter()
    command = [*_COMMAND, "--server", server, "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not _first_token(port):
            if process.poll() is not None or time.perf_counter() - started > _START_TIMEOUT_S:
                raise UsageError("the gateway did not start")
            time.sleep(_POLL_S)
        return time.perf_counter() - started
    finally:
        process.terminate()
        process.wait()


def _first_token(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_TIMEOUT_S)
    asked = {"model": "outrider", "messages": [{"role": "user", "content": "Who am I?"}], "stream": True}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"Content-Type": "application/json"})
        # any() stops at the first token; closing the connection ends the rest of the answer.
        return any(b'"origin"' in line for line in connection.getresponse())
    # Only a refused connection means that it does not listen yet: other errors must show.
    except ConnectionRefusedError:
        return False
    finally:
        connection.close()
