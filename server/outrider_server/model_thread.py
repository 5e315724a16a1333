"""The thread the target runs in: takes every waiting job into one pass, tick after tick. The one place that changes
what sessions hold.

A tick: gather what has arrived, take the first job of every session, draft where the server is to, plan, verify, post
verdicts, commit, tap, post features. Jobs of one session run in the order they came.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from outrider_proto.errors import Reason, Refusal, Violation
from outrider_proto.packing import prefix_hash
from outrider_proto.tree import MAX_NODES
from outrider_server.engine import Engine, Outcome, Work
from outrider_server.held import Held
from outrider_server.jobs import Job

_log = logging.getLogger(__name__)
_SHORT_ROWS = MAX_NODES + 1  # a job of this many rows never waits behind somebody's long prompt


@dataclass(frozen=True, slots=True)
class Kept:
    """How many leading tokens of a session are held, and their hash."""

    length: int
    hash: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Inquiry:
    """What does the session hold, of its first `limit` tokens, once the jobs before this have ended?"""

    held: Held
    limit: int
    post: Callable[[Kept], None]

    def answer(self) -> None:
        tokens = self.held.tokens[: self.limit]
        self.post(Kept(len(tokens), prefix_hash(tokens)))


def plan(jobs: Sequence[Job], chunk_tokens: int) -> list[tuple[Job, Work]]:
    """Every short job whole; the long ones share `chunk_tokens` rows, oldest first."""
    room = chunk_tokens
    planned: list[tuple[Job, Work]] = []
    for job in jobs:
        if job.num_rows <= _SHORT_ROWS:
            planned.append((job, job.work(job.num_rows)))
        elif room > 0:
            work = job.work(room)
            room -= len(work.chain) + len(work.tree)
            planned.append((job, work))
    return planned


class ModelThread:
    """Runs jobs on an engine. submit() from any thread; stop() ends it and waits."""

    def __init__(self, engine: Engine, chunk_tokens: int) -> None:
        self._engine = engine
        self._chunk_tokens = chunk_tokens
        self._inbox: SimpleQueue[Job | Inquiry | None] = SimpleQueue()
        self._lines: dict[Held, deque[Job | Inquiry]] = {}
        self._thread = threading.Thread(target=self._run, name="outrider-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, item: Job | Inquiry) -> None:
        self._inbox.put(item)

    def stop(self) -> None:
        """End after the pass under way; safe twice, and before start."""
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._gather():
            try:
                self._tick()
            except Exception as error:  # our own fault, of no session: answer everybody, go on
                self._fail_all(error)

    def _gather(self) -> bool:
        """Sort arrivals into their sessions' lines; wait for one when there is nothing to do. False: time to end."""
        try:
            while (item := self._inbox.get(block=not self._lines)) is not None:
                self._lines.setdefault(item.held, deque()).append(item)
        except Empty:
            return True
        return False

    def _tick(self) -> None:
        planned = plan(self._heads(), self._chunk_tokens)
        if not planned:
            return
        outcomes = self._verify(planned)
        for job, outcome in outcomes:
            job.judge(outcome)
        for job, outcome in outcomes:
            self._settle(job, outcome)

    def _fail_all(self, error: Exception) -> None:
        lines, self._lines = self._lines, {}
        for line in lines.values():
            for item in line:
                if isinstance(item, Job):
                    _fail(item, error)

    def _heads(self) -> list[Job]:
        """The first job of every session that wants the model."""
        heads: list[Job] = []
        for held, line in list(self._lines.items()):
            while line:
                first = line[0]
                if isinstance(first, Job) and _wants_model(first):
                    heads.append(first)
                    break
                if isinstance(first, Inquiry):
                    first.answer()
                line.popleft()
            else:
                del self._lines[held]
        return heads

    def _verify(self, planned: Sequence[tuple[Job, Work]]) -> list[tuple[Job, Outcome]]:
        """One pass; if it fails, one pass each, so that only the session at fault suffers."""
        try:
            outcomes = self._engine.verify([work for _, work in planned])
        except Exception as error:
            if len(planned) > 1:
                return [pair for one in planned for pair in self._verify([one])]
            _fail(planned[0][0], error)
            return []
        return [(job, outcome) for (job, _), outcome in zip(planned, outcomes, strict=True)]

    def _settle(self, job: Job, outcome: Outcome) -> None:
        try:
            self._engine.commit(outcome)
            started = time.monotonic()
            self._engine.tap(outcome)
            job.settle(time.monotonic() - started)
        except Exception as error:
            _fail(job, error)


def _wants_model(job: Job) -> bool:
    """Whether the job has work to do; answers it where it ends here."""
    if job.over:
        return False
    if job.cancelled:
        job.cancel()
        return False
    if job.stale:
        job.dismiss()
        return False
    try:
        job.begin()
        if job.lacks_tree:
            _draft(job)
    except Violation as violation:
        job.fail(violation)
        return False
    except Exception as error:
        _fail(job, error)
        return False
    if job.cancelled:  # while it drafted
        job.cancel()
        return False
    return True


def _draft(job: Job) -> None:
    started = time.monotonic()
    job.grow()
    job.drafted(time.monotonic() - started)


def _fail(job: Job, error: Exception) -> None:
    _log.error("a session failed", exc_info=error)
    job.fail(Refusal(Reason.INTERNAL, f"the server failed on this session: {type(error).__name__}"))
