"""The other ranks' processes, as rank 0 sees them: start, messages, supervision, end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from signal import Signals
from tempfile import TemporaryDirectory

from torch import Tensor

from outrider_proto.errors import UsageError
from outrider_server.parallel.shard import Shard, leave

READY, LOADED = b"ready", b"loaded"
_START_S = 300.0  # to import torch and transformers
_LOAD_S = 600.0  # to load a share, after rank 0 has its own
_END_S = 10.0
_LAST_WORDS_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class _WorkerProcess:
    rank: int
    process: subprocess.Popen[bytes]
    socket: Connection

    @classmethod
    def start(cls, shard: Shard) -> _WorkerProcess:
        ours, theirs = Pipe()
        with theirs:
            # -P: a file in the working directory must not shadow a module
            command = [sys.executable, "-P", "-m", "outrider_server.parallel.worker", str(theirs.fileno())]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        worker = cls(shard.rank, process, ours)
        with suppress(OSError):  # it has died already, which expect() will notice
            ours.send(asdict(shard))
        return worker

    def expect(self, expected: bytes, patience_s: float) -> None:
        """Raise UsageError unless it sends `expected` in time."""
        if not self.socket.poll(patience_s):
            raise UsageError(f"rank {self.rank} of the target: not {expected.decode()} within {patience_s:g} s")
        if (reply := self.last_words()) != expected.decode():
            raise UsageError(f"rank {self.rank} of the target: {reply}")

    def last_words(self) -> str:
        """Return its last message, or how it ended."""
        try:
            return self.socket.recv_bytes().decode(errors="replace")
        except (EOFError, OSError):
            return self._ending()

    def end(self) -> None:
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _ending(self) -> str:
        try:
            code = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "it hung up"
        return f"killed by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class RankProcesses:
    """The processes of ranks 1, 2, ...

    `broken` is done, with the reason, once no pass can run any more: then this process must end, too.
    """

    def __init__(self, folder: TemporaryDirectory[str], workers: list[_WorkerProcess]) -> None:
        self._folder = folder
        self._workers = workers
        self._watcher = threading.Thread(target=self._watch, name="outrider ranks", daemon=True)
        self._closing = False
        self._lock = threading.Lock()
        self.broken: Future[str] = Future()
        # From now on it cannot be cancelled: one waiter that gives up must not take the reason from the others.
        self.broken.set_running_or_notify_cancel()

    @classmethod
    def start(cls, shard: Shard) -> tuple[RankProcesses, Shard]:
        """Start all ranks but 0; return them, and the shard with their rendezvous. Raises UsageError."""
        folder = TemporaryDirectory(prefix="outrider-ranks-")
        shard = replace(shard, rendezvous=f"{folder.name}/meeting")
        ranks = cls(folder, [_WorkerProcess.start(replace(shard, rank=rank)) for rank in range(1, shard.num_ranks)])
        try:
            for worker in ranks._workers:
                worker.expect(READY, _START_S)
        except BaseException:
            ranks.close()
            raise
        return ranks, shard

    def await_loaded(self) -> None:
        """Wait until all have loaded. Raises UsageError."""
        for worker in self._workers:
            worker.expect(LOADED, _LOAD_S)

    def watch(self) -> None:
        """Watch the processes: from now on the end of one sets `broken`."""
        self._watcher.start()

    @property
    def watched(self) -> bool:
        return self._watcher.ident is not None

    def broadcast(self, arguments: Mapping[str, Tensor], *, on_slots: bool, trial: tuple[int, bool] | None) -> None:
        """Have all run a pass with these arguments, on slots or with the model's own attention on their heads.

        `trial`: as TRIAL says.

        Raises OSError when a rank is gone.
        """
        # As arrays: torch would share the memory of its tensors with the other process.
        message = on_slots, trial, {name: rows.cpu().numpy() for name, rows in arguments.items()}
        for worker in self._workers:
            worker.socket.send(message)

    def fail_pass(self, error: Exception) -> None:
        """Set `broken` after a pass ended half-way, preferably to what a dead rank reported."""
        wait_for([self.broken], _LAST_WORDS_S)
        self._fail(f"a pass over {len(self._workers) + 1} ranks broke off: {type(error).__name__}: {error}")

    def _fail(self, why: str) -> None:
        """Set `broken`; the first reason counts."""
        with self._lock:
            # A rank that ends because close() has asked for it is no failure.
            if not self._closing and not self.broken.done():
                self.broken.set_result(why)

    def close(self) -> None:
        """End the processes and wait for them; kill them once broken. Safe to call twice."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        for worker in self._workers:
            if self.broken.done():
                worker.process.kill()
                continue
            with suppress(OSError):
                worker.socket.send(None)
        leave()
        for worker in self._workers:
            worker.end()
        if self.watched:
            self._watcher.join()
        for worker in self._workers:
            worker.socket.close()
        self._folder.cleanup()

    def _watch(self) -> None:
        """Wait until one process sends anything or ends."""
        by_socket = {worker.socket: worker for worker in self._workers}
        ready = wait(list(by_socket))
        gone = next(worker for socket, worker in by_socket.items() if socket in ready)
        self._fail(f"rank {gone.rank} of the target: {gone.last_words()}")
