"""A real `outrider-server deploy` in a process of its own, with its Ray cluster: updated, replicas killed."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from outrider_proto.addresses import port_of
from outrider_proto.errors import UsageError

_START_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 60.0
_REPLICA = "ray::ServeReplica:"


class RayProcess:
    """An `outrider-server deploy` with these `options`; use it as a context manager.

    Raises UsageError if it does not start.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._options = list(options)
        # Ray's processes may still write when the directory is removed.
        self._directory = tempfile.TemporaryDirectory(prefix="outrider-ray-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = f"OUTRIDER_RAY_PROCESS={secrets.token_hex(16)}"
        self._ready: dict[str, str] = {}

    @property
    def address(self) -> str:
        """host:port of the service."""
        return self._ready["address"]

    def __enter__(self) -> Self:
        ready_file = Path(self._directory.name) / "ready.json"
        log = Path(self._directory.name) / "log"
        command = [*self._command, "--set", "port=0", "--set", "http-port=0", "--ready-file", str(ready_file)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env=self._environment)
        give_up_at = time.monotonic() + _START_TIMEOUT_S
        while not ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                log_tail = log.read_text().strip()[-2000:]  # before the folder goes
                self._stop()
                raise UsageError(f"the service did not start: {log_tail}")
            time.sleep(0.05)
        self._ready = json.loads(ready_file.read_text())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def replicas(self) -> list[int]:
        """Return the process ids of the replicas."""
        return [pid for pid, name in self._own_processes() if name.startswith(_REPLICA)]

    def kill_replica(self) -> int:
        """Kill a replica with SIGKILL and return its process id."""
        victim = self.replicas()[0]
        os.kill(victim, signal.SIGKILL)
        return victim

    def update(self, options: Sequence[str] = ()) -> None:
        """Replace every replica by one with other options, and wait until that is done."""
        ports = ["--set", f"port={port_of(self.address)}", "--set", f"http-port={self._ready['http_port']}"]
        command = [*self._command, *options, *ports, "--ray-address", self._ready["ray"]]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UsageError(f"the update failed: {done.stderr.strip()[-2000:]}")

    @property
    def _command(self) -> list[str]:
        return [sys.executable, "-m", "outrider_server", "deploy", *self._options]

    @property
    def _environment(self) -> dict[str, str]:
        """Environment with temporary Ray files and a token for this cluster alone."""
        name, _, value = self._mark.partition("=")
        return os.environ | {
            name: value,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": value,
            "RAY_TMPDIR": self._directory.name,
        }

    def _stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid, _ in self._own_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._directory.cleanup()

    def _own_processes(self) -> list[tuple[int, str]]:
        """Return id and name of every process that inherited our environment."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                # Ray's processes outlive their parent and rename themselves: only the environment tells whose they are.
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    name = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
                    found.append((int(folder.name), name))
        return found
