"""The workers as seen by who starts them: told what to do, asked, waited for."""

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
_ANSWER_TIMEOUT_S = 120.0  # to anything but the work itself
_STOP_TIMEOUT_S = 60.0


class WorkerProcess:
    """One worker process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Any) -> None:  # Any: tempfile's own class
        self._process = process
        self._log = log
        self._answers: dict[str, asyncio.Queue[dict[str, Any]]] = {}  # Any: JSON
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, assignment: Assignment) -> WorkerProcess:
        log = tempfile.TemporaryFile()  # noqa: SIM115 # closed by `end`
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outrider_bench.load.clients.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=_MAX_LINE,
        )
        member = cls(process, log)
        member.tell(assignment.to_json())
        return member

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def use(self) -> ProcessUse:
        return ProcessUse.of(self.pid)

    def tell(self, order: dict[str, Any]) -> None:  # Any: JSON
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):  # it has ended: `answer` says so
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def answer(self, what: str, timeout_s: float | None = _ANSWER_TIMEOUT_S) -> dict[str, Any]:  # Any: JSON
        """The next line of that kind. Raises UsageError when the process has ended without, or takes too long."""
        waiting = asyncio.create_task(self._queue(what).get())
        try:
            await asyncio.wait((waiting, self._reading), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            if not self._queue(what).empty():
                return self._queue(what).get_nowait()
            why = "ended" if self._reading.done() else f"said nothing for {timeout_s:g} s"
            raise UsageError(f"a process of clients {why}: {self._said()}")
        finally:
            waiting.cancel()

    async def end(self) -> None:
        """Ask it to, and see to it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
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
            answer = json.loads(line)
            self._queue(answer["what"]).put_nowait(answer)

    def _queue(self, what: str) -> asyncio.Queue[dict[str, Any]]:  # Any: JSON
        return self._answers.setdefault(what, asyncio.Queue())

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-500:] or "no word"


class WorkerPool:
    """All workers of one run."""

    def __init__(self, members: Sequence[WorkerProcess]) -> None:
        self.members = members

    def begin(self, begin: float, end: float | None) -> None:
        """All at once; what happens before `begin` is not counted."""
        for member in self.members:
            member.tell({"do": "begin", "begin": begin, "end": end})

    def stop(self) -> None:
        for member in self.members:
            member.tell({"do": "stop"})

    async def client_counters(self) -> list[ClientCounters]:
        """When all are done, by client."""
        answers = await asyncio.gather(*(member.answer("result", None) for member in self.members))
        found = [ClientCounters.from_json(counters) for answer in answers for counters in answer["client_counters"]]
        return sorted(found, key=lambda counters: counters.client)

    async def told(self) -> dict[str, int]:
        """Sums so far."""
        for member in self.members:
            member.tell({"do": "tell"})
        answers = await asyncio.gather(*(member.answer("told") for member in self.members))
        return {name: sum(answer[name] for answer in answers) for name in answers[0] if name != "what"}

    @property
    def use(self) -> ProcessUse:
        """Of all together."""
        uses = [member.use for member in self.members]
        return ProcessUse(sum(use.cpu_s for use in uses), sum(use.rss_bytes for use in uses))


@asynccontextmanager
async def worker_pool(assignment: Assignment, num_workers: int) -> AsyncIterator[WorkerPool]:
    """The assignment's clients, dealt out to so many processes that are ready to begin."""
    hands = [assignment.numbers[first::num_workers] for first in range(num_workers)]
    members: list[WorkerProcess] = []
    try:
        for hand in filter(None, hands):
            members.append(await WorkerProcess.start(replace(assignment, numbers=hand)))  # noqa: PERF401 # kept if the next fails
        await asyncio.gather(*(member.answer("ready") for member in members))
        yield WorkerPool(members)
    finally:
        await asyncio.gather(*(member.end() for member in members))
