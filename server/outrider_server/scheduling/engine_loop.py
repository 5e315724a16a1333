"""The thread the target runs in: step after step it runs the waiting requests in one pass.

Only this thread changes what sessions hold. A step: gather arrivals, take the first request of every session, draft
where the server is asked to, plan, verify, post verdicts, commit, tap, post features, report. Where the target only
decodes, what is left of a pass is done while the next one runs: its verdicts leave then, and features that nobody reads
yet wait for each other. While a GPU computes a pass, arrivals are gathered and the requests of other sessions begin.
Requests of one session run in the order they came. A request that finds no memory for its K/V stays in its queue and is
tried again, up to a bound; so does one whose client does not read. Once the target cannot run any more, every request
is refused and `broken` is set: the process must end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import abc, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Literal, TypeAlias

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Verdict
from outrider_proto.packing import prefix_hash
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.engine import Engine, StepInput, StepResult
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.budget import OutOfKVMemory
from outrider_server.scheduling.fault_handler import FaultHandler, about_to_restart, is_lost_device
from outrider_server.scheduling.feature_feed import FeatureFeed
from outrider_server.scheduling.request import Post, Request
from outrider_server.scheduling.scheduler import new_scheduler
from outrider_server.scheduling.server_drafting import ServerDrafting
from outrider_server.scheduling.step_stats import StepStats
from outrider_server.scheduling.tree_budget import NO_LIMIT, TreeBudget

_log = logging.getLogger(__name__)
_RETRY_S = 0.01  # where every request waits for memory, or for its client
_RETRY_MEMORY_S = 0.005  # least time between two tries of one request: each looks at all sessions
_DEFERRED_ROWS = 64  # of a session, whose features are made together: at little more than the cost of one
_NO_NUMBERS = "the target's logits for this text are not finite (NaN or infinite): no token can be chosen"

RequestState: TypeAlias = Literal["ready", "waiting", "paused", "over"]


@dataclass(frozen=True, slots=True)
class PrefixInfo:
    """Number of leading tokens that a session holds, and their hash."""

    length: int
    hash: bytes


@dataclass(frozen=True, slots=True, eq=False)
class PrefixQuery:
    """A question for what a session holds of its first `limit` tokens, once its earlier requests have ended."""

    sequence: Sequence
    limit: int
    post: Callable[[PrefixInfo], None]

    def answer(self) -> None:
        tokens = self.sequence.tokens[: self.limit]
        self.post(PrefixInfo(len(tokens), prefix_hash(tokens)))


class EngineLoop:
    """Runs requests on an engine, in a thread of its own.

    submit() from any thread; stop() ends it and waits. `on_step` is called in this thread after every pass. Without
    `overlap` a pass begins when everything of the last one is done. Replies of one pass are posted inside `held()`.
    """

    def __init__(
        self,
        engine: Engine,
        limits: LimitsConfig,
        on_step: Callable[[StepStats], None] | None = None,
        *,
        overlap: bool = True,
        held: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._engine = engine
        self._held = held
        self._overlap = overlap
        self._plans_ahead = limits.plan_ahead == "on" or (limits.plan_ahead == "auto" and engine.is_asynchronous)
        self._scheduler = new_scheduler(limits.scheduler, limits.batch_tokens, limits.chunk_rows)
        self._tree_budget = TreeBudget(limits.batch_tokens) if limits.adaptive_trees else None
        self._room_wait_s = limits.room_wait_s
        self._on_step = on_step
        self._inbox: SimpleQueue[Request | PrefixQuery | FeatureFeed | None] = SimpleQueue()
        self._queues: dict[Sequence, deque[Request | PrefixQuery]] = {}
        self._unposted: list[Request] = []  # requests whose verdicts leave with the next pass
        # A thread: a post from this one writes to a socket, which hands the interpreter lock to the event loop.
        self._poster = ThreadPoolExecutor(1, "outrider-replies")
        self._posting: Future[None] | None = None
        self._running: abc.Set[Sequence] = frozenset()  # in the pass, while the next one is planned
        self._is_stopping = False
        self._is_blocked = False  # no queued request could run
        self._num_paused = 0  # whose clients must read first: no load
        self._num_waiting = 0  # for a later pass than the one that was planned last
        self._idle_s = 0.0  # since the last pass
        self._pass_s = 0.0  # of the last pass
        self._faults = FaultHandler(engine)
        self._drafting = ServerDrafting(engine, self._scheduler, self._faults.fail, limits.max_sessions)
        self._thread = threading.Thread(target=self._run, name="outrider-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def broken(self) -> Future[str]:
        """Done, with the reason, once no further pass can run."""
        return self._faults.broken

    def give_up(self, why: str) -> None:
        """Refuse every request from now on, and set `broken`; the first reason counts. From any thread."""
        self._faults.give_up(why)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self.broken.done()

    def submit(self, item: Request | PrefixQuery | FeatureFeed) -> None:
        self._inbox.put(item)

    def stop(self) -> None:
        """End after the pass under way. Safe to call twice, and before start."""
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        self._poster.shutdown()

    def _run(self) -> None:
        try:
            while not self._is_stopping and self._gather():
                try:
                    self._step()
                except Exception as error:  # a fault of the loop, not of a session: answer every request and go on
                    self._fail_all(error)
            self._post_verdicts()
        except BaseException as error:
            self.give_up(f"the engine thread has ended: {type(error).__name__}")
            raise

    def _gather(self) -> bool:
        """Sort arrivals into their sessions' queues, waiting where nothing can run. Returns False to end."""
        if not self._queues:  # it may wait for long
            self._post_verdicts()
        # Nothing queued: wait. All blocked: try again soon. Otherwise take only what has arrived already.
        patience_s = (_RETRY_S if self._is_blocked else 0.0) if self._queues else None
        started, is_idle = time.monotonic(), len(self._queues) <= self._num_paused
        try:
            # None, from stop(), ends the loop.
            while (item := self._inbox.get(timeout=patience_s)) is not None:
                self._idle_s += time.monotonic() - started if is_idle else 0.0
                is_idle = False
                patience_s = 0.0
                # At once: rows may not wait behind a request that goes on for long.
                if isinstance(item, FeatureFeed):
                    self._pump(item)
                else:
                    self._queues.setdefault(item.sequence, deque()).append(item)
        except Empty:
            self._idle_s += time.monotonic() - started if is_idle else 0.0
            return True
        return False

    def _pump(self, feed: FeatureFeed) -> None:
        try:
            with self._held():
                feed.pump()
        except Exception as error:  # concerns no other stream
            _log.error("features failed", exc_info=error)

    def _step(self) -> None:
        if self.broken.done():
            self._fail_all(about_to_restart())
            return
        planned = self._plan(self._ready_requests())
        self._post_alongside()
        results = self._judged(self._verify(planned))
        self._end_posting()
        has_verdict = any(result.accepted is not None for _, result in results)
        self._faults.count_step(len(planned), len(results), has_verdict=has_verdict)
        self._drafting.learn(results)
        for request, result in results:
            request.apply_result(result, self._tree_nodes)
        self._unposted = [request for request, _ in results]
        # Verdicts leave before commit and tap: clients wait for them, while features can follow. But a post wakes the
        # event loop, and that takes the interpreter lock: where the next pass can begin at once, it begins first.
        if not self._overlap or not all(request.decodes_on for request in self._unposted):
            self._post_verdicts()
        tap_s = self._tap(self._commit(results))
        self._report([result for _, result in results], tap_s)

    def _post_verdicts(self) -> None:
        """Post the verdicts of the last pass."""
        self._post_all(self._take_verdicts())

    def _post_all(self, verdicts: abc.Sequence[tuple[Post, Verdict]]) -> None:
        with self._held():
            for post, verdict in verdicts:
                post(verdict)

    def _post_alongside(self) -> None:
        """Have another thread post them, while this one runs a pass."""
        if verdicts := self._take_verdicts():
            self._posting = self._poster.submit(self._post_all, verdicts)

    def _take_verdicts(self) -> list[tuple[Post, Verdict]]:
        requests, self._unposted = self._unposted, []
        return [(request.post, verdict) for request in requests if (verdict := request.take_verdict())]

    def _end_posting(self) -> None:
        """Wait until those verdicts have left: later replies must not overtake them."""
        if self._posting is not None:
            posting, self._posting = self._posting, None
            posting.result()

    def _fail_all(self, error: Exception) -> None:
        self._end_posting()
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for item in queue:
                if isinstance(item, Request):
                    self._faults.fail(item, error)
                # A stream waits for it to open, or memory waits to be given back.
                else:
                    _answer(item)

    def _plan_ahead(self, sequences: abc.Set[Sequence]) -> None:
        """While the device runs a pass over `sequences`, take what arrives, and begin the requests of other sessions.

        After the pass come drafts, whose reads would wait for it, and memory for which others' rows must go.
        """
        self._end_posting()  # no reply may overtake those verdicts
        self._running = sequences
        try:
            with ExitStack() as limited:
                for memory in {sequence.memory for sequence in sequences}:
                    limited.enter_context(memory.during_pass())
                self._is_stopping = not self._gather()
                self._begin_requests()
        finally:
            self._running = frozenset()

    def _ready_requests(self) -> list[Request]:
        """Return the first request of every session that can run now, with the server's draft where it wants one."""
        # Asked again: a request may have lost its rows to one that began after it. It stays in line.
        requests = [
            request for request in self._begin_requests() if not request.ended and not request.sequence.is_evicted
        ]
        self._drafting.draft(requests, self._tree_nodes, self._pass_s)
        return [request for request in requests if not request.ended]

    def _begin_requests(self) -> list[Request]:
        """Begin the first request of every session that is not in a pass; return those that can run."""
        requests: list[Request] = []
        self._num_paused = 0
        for sequence, queue in list(self._queues.items()):
            if sequence in self._running:
                continue
            while queue:
                first = queue[0]
                state = self._state_of(first) if isinstance(first, Request) else "over"
                if state == "ready":
                    assert isinstance(first, Request)
                    requests.append(first)
                self._num_paused += state == "paused"
                if state != "over":
                    break
                if isinstance(first, PrefixQuery):
                    _answer(first)
                # Or the session's next request would have the place in line of this one.
                sequence.usage.settle()
                queue.popleft()
            else:
                del self._queues[sequence]
        return requests

    def _plan(self, requests: abc.Sequence[Request]) -> list[tuple[Request, StepInput]]:
        rows = self._scheduler.plan([request.scheduling_request for request in requests])
        self._is_blocked = bool(self._queues) and not any(rows)
        planned = [(request, request.step_input(count)) for request, count in zip(requests, rows, strict=True) if count]
        self._num_waiting = len(self._queues) - self._num_paused - len(planned)
        return planned

    def _verify(self, planned: abc.Sequence[tuple[Request, StepInput]]) -> list[tuple[Request, StepResult]]:
        """Run one pass, and plan the next one meanwhile; if it fails, run one for each that is in it."""
        if not planned:
            return []
        try:
            launched = self._engine.launch([step_input for _, step_input in planned])
        except Exception as error:
            return self._run_apart(planned, error)
        if self._plans_ahead:
            self._plan_ahead({request.sequence for request, _ in planned})
        try:
            results = self._engine.finish(launched)
        except Exception as error:
            return self._run_apart(planned, error)
        return [(request, result) for (request, _), result in zip(planned, results, strict=True)]

    def _run_apart(
        self, failed: abc.Sequence[tuple[Request, StepInput]], error: Exception
    ) -> list[tuple[Request, StepResult]]:
        """Run a pass for each of one that has failed, so that only the session at fault suffers."""
        self._end_posting()
        # An exception does not tell which session caused it.
        if len(failed) > 1 and not is_lost_device(error):
            return [pair for one in failed for pair in self._run_alone(*one)]
        for request, _ in failed:
            self._faults.fail(request, error)
        return []

    def _run_alone(self, request: Request, step_input: StepInput) -> list[tuple[Request, StepResult]]:
        try:
            return [(request, result) for result in self._engine.verify([step_input])]
        except Exception as error:
            self._faults.fail(request, error)
            return []

    def _judged(self, results: abc.Sequence[tuple[Request, StepResult]]) -> list[tuple[Request, StepResult]]:
        """Return the results that can stand; the sessions of the others have failed."""
        for request, result in results:
            if not result.finite:
                _log.warning("a session failed: %s", _NO_NUMBERS)
                self._faults.fail(request, Refusal(Reason.INTERNAL, _NO_NUMBERS))
        return [(request, result) for request, result in results if result.finite]

    def _commit(self, results: abc.Sequence[tuple[Request, StepResult]]) -> list[tuple[Request, StepResult]]:
        """Apply the results; return those where that succeeded."""
        committed = []
        failures = self._engine.commit_all([result for _, result in results])
        for (request, result), error in zip(results, failures, strict=True):
            if error is None:
                committed.append((request, result))
            else:
                self._faults.fail(request, error)
        return committed

    def _tap(self, committed: abc.Sequence[tuple[Request, StepResult]]) -> float:
        """Make features for all together or, if that fails, for each alone; return the seconds it took."""
        started = time.monotonic()
        try:
            self._engine.tap([request.sequence for request, _ in committed if not self._defers_features(request)])
        except Exception as error:
            if len(committed) > 1:
                return sum(self._tap([pair]) for pair in committed)
            self._faults.fail(committed[0][0], error)
            return time.monotonic() - started
        tap_s = time.monotonic() - started
        with self._held():
            for request, _ in committed:
                self._finish_step(request, tap_s)
        return tap_s

    def _defers_features(self, request: Request) -> bool:
        """Return whether the features of its rows can wait, and prepare for that."""
        if not self._overlap or request.needs_features or request.sequence.num_untapped > _DEFERRED_ROWS:
            return False
        request.sequence.defer_features()
        return True

    @property
    def _tree_nodes(self) -> int:
        return NO_LIMIT if self._tree_budget is None else self._tree_budget.nodes

    def _report(self, results: abc.Sequence[StepResult], tap_s: float) -> None:
        if not results:
            return
        stats = StepStats.of(results, self._num_waiting, tap_s, self._idle_s)
        self._pass_s = stats.forward_s
        self._scheduler.learn(stats.rows, stats.forward_s, results[-1].timing.ended)
        self._idle_s = 0.0
        if self._tree_budget is not None:
            self._tree_budget.take(stats, time.monotonic())
        if self._on_step is not None:
            self._on_step(stats)

    def _state_of(self, request: Request) -> RequestState:
        """Return whether the request can run now; end it where it cannot any more."""
        try:
            return self._try_begin(request)
        except OutOfKVMemory:
            # During a pass only free memory counts: whether there is none is seen after it.
            return "waiting" if self._running else _wait_for_memory(request, self._room_wait_s)
        except Refusal as refusal:
            request.fail(refusal)
        except Exception as error:
            self._faults.fail(request, error)
        return "over"

    def _try_begin(self, request: Request) -> RequestState:
        if request.ended:
            return "over"
        now = time.monotonic()
        if request.update_paused(now):
            return "paused"
        if request.stale and not request.cancelled:
            request.reject_stale()
            return "over"
        if request.cancelled:
            request.cancel()
            return "over"
        request.fit_tree(self._tree_nodes)
        if request.has_lacked_memory(now - _RETRY_MEMORY_S):
            return "waiting"
        request.begin()
        return "ready"

    def _finish_step(self, request: Request, tap_s: float) -> None:
        try:
            request.finish_step(tap_s)
        except Exception as error:
            self._faults.fail(request, error)


def _answer(query: PrefixQuery) -> None:
    try:
        query.answer()
    except Exception as error:  # concerns no other session
        _log.error("a prefix query failed", exc_info=error)


def _wait_for_memory(request: Request, longest_s: float) -> RequestState:
    """Keep the request waiting for K/V memory, or refuse it after `longest_s`."""
    if request.memory_wait_s(time.monotonic()) < longest_s:
        return "waiting"
    request.fail(Refusal(Reason.SERVER_FULL, f"no room for this session's K/V in {longest_s:g} s; try again later"))
    return "over"
