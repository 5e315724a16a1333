"""The worker processes as the command sees them: started, sent commands, waited for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from outrider_bench.load.clients.worker import Assignment
from outrider_bench.load.measures.counters import ClientCounters
from outrider_bench.load.measures.process_use import ProcessUse
from outrider_proto.errors import UsageError

_MAX_LINE = 1 << 26
_ANSWER_TIMEOUT_S = 120.0  # for anything but the run itself
_STOP_TIMEOUT_S = 60.0


class WorkerProcess:
    def __init__(self, process: asyncio.subprocess.Process, log: Any) -> None:  # Any: tempfile's own class
        self._process = process
        self._log = log
        self._messages: dict[str, asyncio.Queue[dict[str, Any]]] = {}  # Any: JSON
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, module: str, assignment: dict[str, Any]) -> WorkerProcess:  # Any: JSON
        """Start `module` of this package, with its assignment."""
        # A file, not a pipe: nobody reads it meanwhile, and a full pipe would block the process.
        log = tempfile.TemporaryFile()  # noqa: SIM115 # closed by `stop`
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"outrider_bench.load.clients.{module}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            # One line holds all counters; asyncio's default of 64 KiB is too short for it.
            limit=_MAX_LINE,
        )
        worker = cls(process, log)
        worker.send(assignment)
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def use(self) -> ProcessUse:
        return ProcessUse.of(self.pid)

    def send(self, command: dict[str, Any]) -> None:  # Any: JSON
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):  # it has ended: `receive` raises
            self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def receive(self, what: str, timeout_s: float | None = _ANSWER_TIMEOUT_S) -> dict[str, Any]:  # Any: JSON
        """Return the next message of that kind.

        Raises UsageError when the process ends without one, or takes longer than `timeout_s`.
        """
        getting = asyncio.create_task(self._queue(what).get())
        try:
            await asyncio.wait((getting, self._reading), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            # The message may have come just before the process ended.
            if not self._queue(what).empty():
                return self._queue(what).get_nowait()
            why = "ended" if self._reading.done() else f"sent nothing for {timeout_s:g} s"
            raise UsageError(f"a client process {why}: {self._log_tail()}")
        finally:
            getting.cancel()

    def end_input(self) -> None:
        """Close its input, which ends it: its last message follows. Safe to call twice."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def stop(self) -> None:
        """Close its input, and kill it if it does not end by itself."""
        self.end_input()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading
        self._log.close()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            self._queue(message["what"]).put_nowait(message)

    def _queue(self, what: str) -> asyncio.Queue[dict[str, Any]]:  # Any: JSON
        return self._messages.setdefault(what, asyncio.Queue())

    def _log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-500:] or "no output"


class WorkerPool:
    """All workers of one run."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.workers = workers

    def begin(self, begin: float, end: float | None) -> None:
        """Start all clients at once; what happens before `begin` is not counted."""
        for worker in self.workers:
            worker.send({"do": "begin", "begin": begin, "end": end})

    def stop(self) -> None:
        for worker in self.workers:
            worker.send({"do": "stop"})

    async def client_counters(self) -> list[ClientCounters]:
        """Wait for all workers to end; return the counters by client."""
        answers = await asyncio.gather(*(worker.receive("result", None) for worker in self.workers))
        found = [ClientCounters.from_json(counters) for answer in answers for counters in answer["client_counters"]]
        return sorted(found, key=lambda counters: counters.client)

    async def totals(self) -> dict[str, int]:
        """Return the sums of the counters so far."""
        for worker in self.workers:
            worker.send({"do": "totals"})
        answers = await asyncio.gather(*(worker.receive("totals") for worker in self.workers))
        return {name: sum(answer[name] for answer in answers) for name in answers[0] if name != "what"}

    @property
    def use(self) -> ProcessUse:
        uses = [worker.use for worker in self.workers]
        return ProcessUse(sum(use.cpu_s for use in uses), sum(use.rss_bytes for use in uses))


@asynccontextmanager
async def worker_pool(assignment: Assignment, num_workers: int) -> AsyncIterator[WorkerPool]:
    """Start worker processes, share out the assignment's clients, and wait until all are ready."""
    parts = [assignment.numbers[first::num_workers] for first in range(num_workers)]
    workers: list[WorkerProcess] = []
    try:
        for part in filter(None, parts):
            workers.append(await WorkerProcess.start("worker", replace(assignment, numbers=part).to_json()))  # noqa: PERF401 # kept if the next fails
        await asyncio.gather(*(worker.receive("ready") for worker in workers))
        yield WorkerPool(workers)
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
