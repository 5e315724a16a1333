"""The thread the target runs in: takes waiting jobs into one pass, tick after tick. The one place that changes what
sessions hold.

A tick: gather what has arrived, take the first job of every session, draft where the server is to, plan, verify, post
verdicts, commit, tap, post features, report. Jobs of one session run in the order they came. One that finds no room for
its K/V stays where it is and is asked again, up to a bound; so does one whose client does not read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Literal, TypeAlias

from outrider_proto.errors import Reason, Refusal
from outrider_proto.packing import prefix_hash
from outrider_server.config.config import Limits
from outrider_server.engine.engine import Engine, Outcome, Work
from outrider_server.engine.sequence import Held
from outrider_server.kv.budget import OutOfRoom
from outrider_server.kv.store import is_out_of_memory
from outrider_server.scheduling.request import Job
from outrider_server.scheduling.scheduler import new_scheduler
from outrider_server.scheduling.step_stats import TickReport
from outrider_server.scheduling.tree_budget import NO_WISH, TreeBudget

_log = logging.getLogger(__name__)
_ASK_AGAIN_S = 0.01  # where every job waits for room, or for its client

Standing: TypeAlias = Literal["ready", "waiting", "resting", "over"]


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


class ModelThread:
    """Runs jobs on an engine. submit() from any thread; stop() ends it and waits. `on_tick` is called in this thread
    after every pass."""

    def __init__(self, engine: Engine, limits: Limits, on_tick: Callable[[TickReport], None] | None = None) -> None:
        self._engine = engine
        self._scheduler = new_scheduler(limits.scheduler, limits.batch_tokens, limits.chunk_tokens)
        self._tree_budget = TreeBudget(limits.batch_tokens) if limits.adaptive_trees else None
        self._room_wait_s = limits.room_wait_s
        self._on_tick = on_tick
        self._inbox: SimpleQueue[Job | Inquiry | None] = SimpleQueue()
        self._lines: dict[Held, deque[Job | Inquiry]] = {}
        self._stuck = False  # nobody in the lines could run
        self._num_resting = 0  # whose clients are to read first: no load
        self._idle_s = 0.0  # since the last pass
        self._thread = threading.Thread(target=self._run, name="outrider-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

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
        patience_s = (_ASK_AGAIN_S if self._stuck else 0.0) if self._lines else None
        started, is_idle = time.monotonic(), len(self._lines) <= self._num_resting
        try:
            while (item := self._inbox.get(timeout=patience_s)) is not None:
                self._idle_s += time.monotonic() - started if is_idle else 0.0
                is_idle = False
                self._lines.setdefault(item.held, deque()).append(item)
                patience_s = 0.0
        except Empty:
            self._idle_s += time.monotonic() - started if is_idle else 0.0
            return True
        return False

    def _tick(self) -> None:
        planned = self._plan(self._heads())
        outcomes = self._verify(planned)
        for job, outcome in outcomes:
            job.judge(outcome, self._wish)
        tap_s = self._tap([pair for pair in outcomes if self._commit(*pair)])
        self._report([outcome for _, outcome in outcomes], tap_s)

    def _fail_all(self, error: Exception) -> None:
        lines, self._lines = self._lines, {}
        for line in lines.values():
            for item in line:
                if isinstance(item, Job):
                    _fail(item, error)
                else:  # somebody waits for it: a stream that opens, or memory that is to be given back
                    _answer(item)

    def _heads(self) -> list[Job]:
        """The first job of every session, where it can run now."""
        heads: list[Job] = []
        self._num_resting = 0
        for held, line in list(self._lines.items()):
            while line:
                first = line[0]
                standing = self._standing(first) if isinstance(first, Job) else "over"
                if standing == "ready":
                    assert isinstance(first, Job)
                    heads.append(first)
                self._num_resting += standing == "resting"
                if standing != "over":
                    break
                if isinstance(first, Inquiry):
                    _answer(first)
                line.popleft()
            else:
                del self._lines[held]
        return [job for job in heads if not job.ended]  # abandoned since: its room may be another's by now

    def _plan(self, heads: Sequence[Job]) -> list[tuple[Job, Work]]:
        rows = self._scheduler.plan([job.wish for job in heads])
        self._stuck = bool(self._lines) and not any(rows)
        return [(job, job.work(count)) for job, count in zip(heads, rows, strict=True) if count]

    def _verify(self, planned: Sequence[tuple[Job, Work]]) -> list[tuple[Job, Outcome]]:
        """One pass; if it fails, one pass each, so that only the session at fault suffers."""
        if not planned:
            return []
        try:
            outcomes = self._engine.verify([work for _, work in planned])
        except Exception as error:
            if len(planned) > 1:
                return [pair for one in planned for pair in self._verify([one])]
            _fail(planned[0][0], error)
            return []
        return [(job, outcome) for (job, _), outcome in zip(planned, outcomes, strict=True)]

    def _commit(self, job: Job, outcome: Outcome) -> bool:
        """Whether it stands."""
        try:
            self._engine.commit(outcome)
        except Exception as error:
            _fail(job, error)
            return False
        return True

    def _tap(self, settled: Sequence[tuple[Job, Outcome]]) -> float:
        """Features of all, together or, if that fails, each by itself; answers what it took."""
        started = time.monotonic()
        try:
            self._engine.tap([outcome for _, outcome in settled])
        except Exception as error:
            if len(settled) > 1:
                return sum(self._tap([pair]) for pair in settled)
            _fail(settled[0][0], error)
            return time.monotonic() - started
        tap_s = time.monotonic() - started
        for job, _ in settled:
            _settle(job, tap_s)
        return tap_s

    @property
    def _wish(self) -> int:
        return NO_WISH if self._tree_budget is None else self._tree_budget.nodes

    def _report(self, outcomes: Sequence[Outcome], tap_s: float) -> None:
        if not outcomes:
            return
        num_waiting = len(self._lines) - self._num_resting - len(outcomes)
        report = TickReport.of(outcomes, num_waiting, tap_s, self._idle_s)
        self._idle_s = 0.0
        if self._tree_budget is not None:
            self._tree_budget.take(report, time.monotonic())
        if self._on_tick is not None:
            self._on_tick(report)

    def _standing(self, job: Job) -> Standing:
        """Whether the job can run now; answers it where it ends here."""
        try:
            return self._begun(job)
        except OutOfRoom:
            return _ask_again(job, self._room_wait_s)
        except Refusal as refusal:
            job.fail(refusal)
        except Exception as error:
            _fail(job, error)
        return "over"

    def _begun(self, job: Job) -> Standing:
        if job.ended:
            return "over"
        if job.rests(time.monotonic()):
            return "resting"
        if job.stale and not job.cancelled:
            job.dismiss()
            return "over"
        if not job.cancelled:
            job.begin()
            self._draft(job)
        if job.cancelled:  # before, or while it drafted
            job.cancel()
            return "over"
        return "ready"

    def _draft(self, job: Job) -> None:
        """Where the server is to."""
        if job.lacks_tree:
            started = time.monotonic()
            job.grow(self._wish)
            job.drafted(time.monotonic() - started)


def _answer(inquiry: Inquiry) -> None:
    try:
        inquiry.answer()
    except Exception as error:  # of no other session's concern
        _log.error("an inquiry failed", exc_info=error)


def _settle(job: Job, tap_s: float) -> None:
    try:
        job.settle(tap_s)
    except Exception as error:
        _fail(job, error)


def _ask_again(job: Job, longest_s: float) -> Standing:
    """There is no room for its K/V now. So long as a job waits nothing of its session runs."""
    if job.waits_for_room(time.monotonic()) < longest_s:
        return "waiting"
    job.fail(Refusal(Reason.SERVER_FULL, f"no room for this session's K/V in {longest_s:g} s; try again later"))
    return "over"


def _fail(job: Job, error: Exception) -> None:
    if is_out_of_memory(error):
        _log.warning("no memory for a pass: %s", error)
        job.held.relieve()
        job.fail(Refusal(Reason.SERVER_FULL, "the server has no memory for this request now; try again later"))
        return
    job.held.distrust()
    if isinstance(error, Refusal):  # a divided target that has lost a part
        job.fail(error)
        return
    _log.error("a session failed", exc_info=error)
    job.fail(Refusal(Reason.INTERNAL, f"the server failed on this session: {type(error).__name__}"))
