"""A real `outrider-server` in a process of its own; what processes use, and pinning them to cores, on Linux."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Self

from outrider_proto.addresses import port_of
from outrider_proto.errors import UsageError

START_TIMEOUT_S = 300.0  # eight seconds of a processor that others may use, too; an early end is noticed at once
_STOP_TIMEOUT_S = 30.0


class ServerProcess:
    """An `outrider-server serve` with these `options`; use it as a context manager.

    Raises UsageError if it does not start.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._options = list(options)
        self._port = 0  # any
        self.metrics: str | None = None  # host:port, if it serves metrics
        self._directory = tempfile.TemporaryDirectory(prefix="outrider-server-")
        self._process: Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port, the same after a restart."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except TimeoutExpired:
                self.kill()
        self._directory.cleanup()

    def start(self) -> None:
        """Start the process and return at once; `wait_ready` waits for it."""
        # A restart must not find the ready file of the server before it.
        self._ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "outrider_server", "serve", "--port", str(self._port), *self._options]
        with self._log.open("wb") as log:
            self._process = Popen([*command, "--ready-file", str(self._ready_file)], stdout=log, stderr=log)

    def wait_ready(self) -> None:
        assert self._process is not None
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not self._ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise UsageError(f"the server did not start: {self._log.read_text().strip()[-500:]}")
            time.sleep(0.02)
        ready = json.loads(self._ready_file.read_text())
        # Port 0 becomes the port that the server got, so that a restart keeps the address.
        self._port = port_of(ready["address"])
        self.metrics = ready["metrics"]

    def kill(self) -> None:
        """Kill the process with SIGKILL, without a drain."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def _ready_file(self) -> Path:
        return Path(self._directory.name) / "ready.json"

    @property
    def _log(self) -> Path:
        return Path(self._directory.name) / "log"


def forking(*imported: str) -> ForkServerContext | SpawnContext:
    """Return what forks processes from one that has imported these modules, which takes seconds of a processor."""
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return multiprocessing.get_context("spawn")
    # Not from this process: torch and gRPC may have threads here, whose locks would stay held in a fork for ever.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(imported))
    return context


@contextmanager
def pinned_apart(server_pid: int) -> Iterator[bool]:
    """Pin this process to one core and the server to another, as if on two machines.

    Sharing a core, they share caches and wake each other up across cores. Later threads are pinned too. Yields False
    where this is not possible.
    """
    if not hasattr(os, "sched_setaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        yield False
        return
    ours, theirs = cores[:2]
    # sched_setaffinity moves a single thread, and gRPC's and torch's run already; later ones inherit from these.
    for thread in os.listdir(f"/proc/{server_pid}/task"):
        os.sched_setaffinity(int(thread), {theirs})
    os.sched_setaffinity(0, {ours})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, set(cores))


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Processor seconds of all threads, and resident memory."""

    cpu_s: float = 0.0
    rss_bytes: int = 0

    @classmethod
    def of(cls, pid: int) -> ProcessUse:
        """Read /proc; zeros if there is no such process, or no /proc."""
        try:
            # The second field is the command's name, which may contain spaces and parentheses.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return cls()
        user, system = int(fields[11]), int(fields[12])
        return cls((user + system) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


@dataclass(frozen=True, slots=True)
class CoreShares:
    """The cores of the server and of the clients; empty for all cores."""

    server: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()

    @classmethod
    def apart(cls, num_client_cores: int) -> CoreShares:
        """Give the clients `num_client_cores`, at most half of all; empty where cores cannot be shared out."""
        if not hasattr(os, "sched_setaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
            return cls()
        theirs = min(num_client_cores, len(cores) // 2)
        return cls(tuple(cores[:-theirs]), tuple(cores[-theirs:]))


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Pin this thread, and the processes that it starts meanwhile, to `cores`, if any are given."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    # Affinity belongs to the thread, and is inherited by threads and processes that it starts.
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
