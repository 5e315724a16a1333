"""The worker processes as the command sees them: started, sent commands, waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from multiprocessing import Pipe
from typing import Any

from outrider_bench.core.processes import ProcessUse, forking
from outrider_bench.load.clients.client import CountingWindow
from outrider_bench.load.clients.counters import ClientCounters
from outrider_bench.load.clients.worker import Assignment, work
from outrider_proto.errors import UsageError

_READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0


class WorkerProcess:
    """A process with some of the clients, started at once."""

    def __init__(self, assignment: Assignment) -> None:
        self._pipe, theirs = Pipe()
        self._process = forking("outrider_bench.load.clients.worker").Process(
            target=work, args=(assignment, theirs), daemon=True
        )
        self._process.start()
        theirs.close()  # so that the pipe ends with the process
        self._reading = threading.Lock()

    @property
    def use(self) -> ProcessUse:
        return ProcessUse.of(self._process.pid or 0)

    def send(self, command: CountingWindow | None) -> None:
        with suppress(OSError):  # it has ended: `receive` raises
            self._pipe.send(command)

    async def receive(self, timeout_s: float | None = None) -> Any:  # Any: READY, or counters
        """Return its next message. Raises UsageError when it ends without one, or takes longer than `timeout_s`."""
        return await asyncio.to_thread(self._receive, timeout_s)

    def _receive(self, timeout_s: float | None) -> Any:  # Any: as above
        # Locked: after a cancellation the thread that waited goes on reading.
        with self._reading:
            try:
                if self._pipe.poll(timeout_s):
                    return self._pipe.recv()
            except (EOFError, OSError):
                raise UsageError("a client process ended: see what it has written above") from None
        raise UsageError(f"a client process sent nothing for {timeout_s:g} s")

    async def stop(self) -> None:
        """End it, and kill it if it does not end by itself."""
        self.send(None)
        with suppress(UsageError):
            while True:  # what it still sends would block it if nobody read
                await self.receive(_STOP_TIMEOUT_S)
        self._process.kill()
        await asyncio.to_thread(self._process.join)
        self._pipe.close()


class WorkerPool:
    """All workers of one run."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.workers = workers

    def begin(self, window: CountingWindow) -> None:
        """Start all clients at once; what happens before the window is not counted."""
        for worker in self.workers:
            worker.send(window)

    def stop(self) -> None:
        for worker in self.workers:
            worker.send(None)

    async def client_counters(self) -> list[ClientCounters]:
        """Wait for all workers to end; return the counters by client."""
        answers = await asyncio.gather(*(worker.receive() for worker in self.workers))
        return sorted((one for answer in answers for one in answer), key=lambda counters: counters.client)

    @property
    def use(self) -> ProcessUse:
        uses = [worker.use for worker in self.workers]
        return ProcessUse(sum(use.cpu_s for use in uses), sum(use.rss_bytes for use in uses))


@asynccontextmanager
async def worker_pool(assignment: Assignment, num_workers: int) -> AsyncIterator[WorkerPool]:
    """Start worker processes, share out the assignment's clients, and wait until all are ready."""
    parts = [assignment.numbers[first::num_workers] for first in range(num_workers)]
    workers = [WorkerProcess(replace(assignment, numbers=part)) for part in parts if part]
    try:
        await asyncio.gather(*(worker.receive(_READY_TIMEOUT_S) for worker in workers))
        yield WorkerPool(workers)
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
