"""The thread the target runs in: step after step it runs the waiting requests in one pass.

Only this thread changes what sessions hold. Each step begins the first request of every session, drafts where the
server is asked to, plans, verifies, posts verdicts, commits, taps and reports. Where the target only decodes, the next
pass begins before the event loop is woken for the verdicts of the last. While a GPU computes a pass, this thread
gathers arrivals and begins the requests of other sessions. Once the target cannot run any more, it refuses every
request and sets `faults.broken`: the process must end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import abc
from collections.abc import Callable
from contextlib import ExitStack
from queue import Empty, SimpleQueue

from outrider_server.config.config import LimitsConfig
from outrider_server.engine.engine import Engine
from outrider_server.engine.sequence import Sequence
from outrider_server.scheduling.fault_handler import FaultHandler, about_to_restart
from outrider_server.scheduling.feature_feed import FeatureFeed
from outrider_server.scheduling.pass_runner import PassRunner, Planned, Results
from outrider_server.scheduling.reply_poster import ReplyPoster
from outrider_server.scheduling.request import Request
from outrider_server.scheduling.request_queues import PrefixQuery, RequestQueues
from outrider_server.scheduling.scheduler import Scheduler
from outrider_server.scheduling.server_drafting import ServerDrafting
from outrider_server.scheduling.step_stats import StepStats
from outrider_server.scheduling.tree_budget import NO_LIMIT, TreeBudget

_log = logging.getLogger(__name__)
_RETRY_S = 0.01  # where every request waits for memory, or for its client


class EngineLoop:
    """Runs requests on an engine, in a thread of its own.

    submit() from any thread; stop() ends it and waits. What requests post goes through `replies`, which this thread
    wakes. `on_step` is called in this thread after every pass.
    """

    def __init__(
        self,
        engine: Engine,
        limits: LimitsConfig,
        replies: ReplyPoster | None = None,
        on_step: Callable[[StepStats], None] = lambda stats: None,
    ) -> None:
        self._replies = replies or ReplyPoster()
        # On such a device launch() returns while it computes.
        is_asynchronous = engine.target.kv.device.type == "cuda"
        self._plans_ahead = limits.plan_ahead == "on" or (limits.plan_ahead == "auto" and is_asynchronous)
        self._on_step = on_step
        self._inbox: SimpleQueue[Request | PrefixQuery | FeatureFeed | None] = SimpleQueue()
        self.faults = FaultHandler(engine)
        self._queues = RequestQueues(limits.room_wait_s, self.faults.fail)
        self._scheduler = Scheduler(limits.batch_tokens, limits.chunk_rows)
        self._drafting = ServerDrafting(engine, self._scheduler, self.faults.fail, limits.max_sessions)
        self._passes = PassRunner(engine, self.faults)
        self._tree_budget = TreeBudget(limits.batch_tokens) if limits.adaptive_trees else None
        self._is_stopping = False
        self._is_blocked = False  # no queued request could run
        self._num_waiting = 0  # for a later pass than the one that was planned last
        self._idle_s = 0.0  # since the last pass
        self._pass_s = 0.0  # of the last pass
        self._thread = threading.Thread(target=self._run, name="outrider-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self.faults.broken.done()

    def submit(self, item: Request | PrefixQuery | FeatureFeed) -> None:
        self._inbox.put(item)

    def stop(self) -> None:
        """End after the pass under way. Safe to call twice, and before start."""
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        self._replies.stop()

    def _run(self) -> None:
        try:
            while not self._is_stopping and self._gather():
                try:
                    self._step()
                except Exception as error:  # a fault of the loop, not of a session: answer every request and go on
                    self._queues.fail_all(error)
        except BaseException as error:
            self.faults.give_up(f"the engine thread has ended: {type(error).__name__}")
            raise

    def _step(self) -> None:
        if self.faults.broken.done():
            self._queues.fail_all(about_to_restart())
            return
        results = self._verify(self._plan(self._draft(self._begin())))
        self._post_verdicts(results)
        tap_s = self._passes.tap(self._passes.commit(results))
        self._wake(results)
        self._report(results, tap_s)

    def _gather(self) -> bool:
        """Sort arrivals into their sessions' queues, waiting where nothing can run. Returns False to end."""
        if not self._queues:  # it may wait for long
            self._replies.wake()
        # Nothing queued: wait. All blocked: try again soon. Otherwise take only what has arrived already.
        patience_s = (_RETRY_S if self._is_blocked else 0.0) if self._queues else None
        started, is_idle = time.monotonic(), len(self._queues) <= self._queues.num_paused
        try:
            # None, from stop(), ends the loop.
            while (item := self._inbox.get(timeout=patience_s)) is not None:
                self._idle_s += time.monotonic() - started if is_idle else 0.0
                is_idle = False
                patience_s = 0.0
                # At once: rows may not wait behind a request that goes on for long.
                if isinstance(item, FeatureFeed):
                    _pump(item)
                else:
                    self._queues.add(item)
        except Empty:
            self._idle_s += time.monotonic() - started if is_idle else 0.0
            return True
        return False

    def _begin(self) -> list[Request]:
        """Begin the first request of every session; return those that can run."""
        # A request may have lost its rows to one that began after it: then it stays in line.
        begun = self._queues.begin(self._tree_nodes)
        return [request for request in begun if not request.ended and request.sequence.slot.holds_any]

    def _draft(self, requests: abc.Sequence[Request]) -> list[Request]:
        """Draft for those who want the server to; return all that can still run."""
        if any(request.grows_trees for request in requests):
            self._replies.wake()  # drafting takes long
        self._drafting.draft(requests, self._tree_nodes, self._pass_s)
        return [request for request in requests if not request.ended]

    def _plan(self, requests: abc.Sequence[Request]) -> Planned:
        rows = self._scheduler.plan([request.scheduling_request for request in requests])
        self._is_blocked = bool(self._queues) and not any(rows)
        planned = [(request, request.step_input(count)) for request, count in zip(requests, rows, strict=True) if count]
        self._num_waiting = len(self._queues) - self._queues.num_paused - len(planned)
        return planned

    def _verify(self, planned: Planned) -> Results:
        """Run one pass, and plan the next one meanwhile."""
        sequences = {request.sequence for request, _ in planned}
        with self._replies.waking_alongside():
            results = self._passes.run(planned, meanwhile=lambda: self._plan_ahead(sequences))
        self.faults.count_step(len(planned), len(results), has_verdict=any(one.accepted for _, one in results))
        return results

    def _plan_ahead(self, sequences: abc.Set[Sequence]) -> None:
        """While the device runs a pass over `sequences`, take what arrives, and begin the requests of other sessions.

        After the pass come drafts, whose reads would wait for it, and memory for which others' rows must go.
        """
        if not self._plans_ahead:
            return
        with ExitStack() as limited:
            for memory in {sequence.memory for sequence in sequences}:
                limited.enter_context(memory.during_pass())
            self._is_stopping = not self._gather()
            self._queues.begin(self._tree_nodes, running=sequences)
        self._replies.wake()

    def _post_verdicts(self, results: Results) -> None:
        """Post verdicts before commit and tap: clients wait for them, while features can follow."""
        self._drafting.learn(results)
        for request, result in results:
            request.apply_result(result, self._tree_nodes)
        self._wake(results)

    def _wake(self, results: Results) -> None:
        """Wake the event loop, unless the next pass can begin at once: all go on, and no features are to follow."""
        if not (results and all(not (one.ended or one.needs_features) for one, _ in results)):
            self._replies.wake()

    @property
    def _tree_nodes(self) -> int:
        return NO_LIMIT if self._tree_budget is None else self._tree_budget.nodes

    def _report(self, results: Results, tap_s: float) -> None:
        if not results:
            return
        stats = StepStats.of([result for _, result in results], self._num_waiting, tap_s, self._idle_s)
        self._pass_s = stats.forward_s
        self._scheduler.learn(stats.rows, stats.forward_s, results[-1][1].timing.ended)
        self._idle_s = 0.0
        if self._tree_budget is not None:
            self._tree_budget.take(stats, time.monotonic())
        self._on_step(stats)


def _pump(feed: FeatureFeed) -> None:
    try:
        feed.pump()
    except Exception as error:  # concerns no other stream
        _log.error("features failed", exc_info=error)
