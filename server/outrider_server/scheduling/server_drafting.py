"""Drafting on the server before a pass, for the requests that ask for it, in a bounded time.

Where a client leaves the size of its trees to the server, they are as large as pays (trees/tree_tuner.py). A cycle is
then a pass and the drafting before it, for all sessions in it together: a node takes its row's time from everybody, and
a level's time is divided among the sessions that it is drafted for. Costs are common to all sessions. How often drafts
come true is each session's own: no client's text makes the trees of others smaller.
"""

from __future__ import annotations

import math
import time
from collections import abc, deque
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.tree_tuner import RowCost, RunningRatio, TreeTuner
from outrider_server.engine.engine import Engine, StepResult
from outrider_server.engine.server_drafter import SessionDrafter
from outrider_server.scheduling.fault_handler import is_lost_device
from outrider_server.scheduling.request import DecodeRequest, Request
from outrider_server.scheduling.scheduler import Scheduler
from outrider_server.scheduling.step_stats import StepStats

# That the server's drafts may take before a pass: as long as the pass before, where that is more.
_DRAFT_S = 0.1
# Where others wait for the pass, or soon will, who get nothing from it: half as long as the pass before, or so long.
_DRAFT_BESIDE_S = 0.005


class ServerDrafting:
    """Grows the drafts of many sessions; `fail` ends a request whose draft has failed.

    At most `max_states` sessions keep a draft state: parked ones are many more than those at work.
    """

    def __init__(
        self, engine: Engine, scheduler: Scheduler, fail: Callable[[Request, Exception], None], max_states: int
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._fail = fail
        self._max_states = max_states
        self._with_state = WeakKeyDictionary[SessionDrafter, None]()  # the least recently used first
        self._costs: dict[Drafter, DraftCosts] = {}
        self._draft_s = 0.0  # before the pass under way

    def draft(self, requests: abc.Sequence[Request], tree_budget: int, pass_s: float) -> None:
        """Draft for those of a pass who want the server to: level by level, together where one drafter's pass can.

        It ends when the time for it is over: `pass_s`, or more where that is short, and less of it beside clients that
        bring their own drafts or none. Who got no level then runs without a tree, and goes first the next time. A tree
        has at most `tree_budget` nodes (0: any), and beside other clients its share of the rows that they can bear.
        """
        wanting = [request for request in requests if isinstance(request, DecodeRequest) and request.needs_draft]
        if not wanting:
            self._draft_s = 0.0
            return
        others = [request.scheduling_request for request in set(requests).difference(wanting)]
        started = time.monotonic()
        rows = self._scheduler.rows_beside([request.scheduling_request for request in wanting], others, started)
        ends_at = started + (max(_DRAFT_S, pass_s) if rows is None else max(_DRAFT_BESIDE_S, pass_s / 2))
        if rows is not None and math.isfinite(rows):
            share = max(int(rows) // len(wanting) - 1, 1)
            tree_budget = min(tree_budget or share, share)
        groups: dict[int, list[DecodeRequest]] = {}  # that grow together
        for request in sorted(wanting, key=lambda request: request.drafter.begun_at):
            if not request.is_stopped and self._begin(request, tree_budget):
                groups.setdefault(request.draft_group, []).append(request)
            if time.monotonic() >= ends_at:
                break
        turns = deque((group, 1) for group in groups.values())
        while turns and time.monotonic() < ends_at:
            group, levels = turns.popleft()
            if group := self._grow([request for request in group if not request.is_stopped], levels):
                turns.append((group, levels + 1))
        for request in wanting:
            request.end_draft()
            # Asked again after the draft: a Cancel may have come in while it ran.
            if request.cancelled and not request.ended:
                request.cancel()
        self._draft_s = time.monotonic() - started

    def learn(self, results: abc.Sequence[tuple[Request, StepResult]]) -> None:
        """Learn from a pass how large trees should be, before its results are applied."""
        learning: set[DraftCosts] = set()
        for request, result in results:
            if not isinstance(request, DecodeRequest) or not request.tunes_trees:
                continue
            if request.drafted is not None and result.accepted is not None:
                learning.add(self._costs_of(request))
                self._tuner_of(request).record_tree(request.drafted, result.accepted.path)
        for costs in learning:
            costs.record_pass(StepStats.of([result for _, result in results], 0, 0.0, 0.0), self._draft_s)

    def _costs_of(self, request: DecodeRequest) -> DraftCosts:
        drafter = request.drafter.drafter
        return self._costs.setdefault(drafter, DraftCosts(drafter.levels_per_pass))

    def _tuner_of(self, request: DecodeRequest) -> TreeTuner:
        drafter = request.drafter
        if drafter.tuner is None:
            costs = self._costs_of(request)
            drafter.tuner = TreeTuner(costs.row_cost, costs.levels_per_pass)
        return drafter.tuner

    def _tuned(self, request: DecodeRequest) -> Callable[[TreeShape], TreeShape] | None:
        """Return what makes a shape of limits one as large as pays; None for a client that wants the shape itself."""
        if not request.tunes_trees:
            return None
        return partial(self._costs_of(request).shape, self._tuner_of(request))

    def _begin(self, request: DecodeRequest, tree_budget: int) -> bool:
        """Draft the first level; return whether there may be another."""
        started = request.drafter.begun_at = time.monotonic()
        self._use_state(request.drafter)
        try:
            self._engine.tap([request.sequence])  # what was deferred: the drafter reads all features
            return request.begin_draft(tree_budget, self._tuned(request))
        except Exception as error:
            self._fail(request, error)
            return False
        finally:
            request.times.draft_s += time.monotonic() - started

    def _use_state(self, drafter: SessionDrafter) -> None:
        """Clear the state that was not used for longest where there are too many."""
        self._with_state.pop(drafter, None)
        self._with_state[drafter] = None
        if len(self._with_state) > self._max_states:
            oldest = next(iter(self._with_state))
            del self._with_state[oldest]
            oldest.clear()

    def _grow(self, group: abc.Sequence[DecodeRequest], levels: int) -> list[DecodeRequest]:
        """Draft one level more than `levels` for all of a group; return those that may have another."""
        started = time.monotonic()
        try:
            has_more = DecodeRequest.grow_drafts(group)
        except Exception as error:
            # It does not tell whose fault it is: these drafts end here, and the next ones run each alone.
            for request in group:
                if len(group) == 1 or is_lost_device(error):
                    self._fail(request, error)
                else:
                    request.drafter.alone = True
            return []
        finally:
            elapsed_s = time.monotonic() - started
            for request in group:
                request.times.draft_s += elapsed_s
        if any(has_more) and group[0].tunes_trees:
            self._costs_of(group[0]).record_level(elapsed_s, sum(has_more), levels)
        return [request for request, more in zip(group, has_more, strict=True) if more]


class DraftCosts:
    """What passes and the levels of one drafter cost on this server."""

    def __init__(self, levels_per_pass: int = 1) -> None:
        self.row_cost = RowCost()
        self.levels_per_pass = levels_per_pass
        self._tokens_per_ms = RunningRatio()
        # Of one session's draft, without its first level: that one also reads the text, and a long prompt would count.
        # Nor do levels count that were there already. Until a second block was drafted, it is taken to cost nothing.
        self._level_ms = RunningRatio()

    def shape(self, tuner: TreeTuner, limits: TreeShape) -> TreeShape:
        """Return the shape of a session's next tree, within `limits`."""
        return tuner.shape(limits, self._tokens_per_ms.value, self._level_ms.value or 0.0)

    def record_level(self, seconds: float, num_sessions: int, levels: int) -> None:
        """Record a level that was drafted for so many sessions together, below `levels` others."""
        if levels % self.levels_per_pass == 0:
            self._level_ms.add(1e3 * seconds / num_sessions, 1.0)

    def record_pass(self, stats: StepStats, draft_s: float) -> None:
        """Record a pass, and the time of the drafting before it."""
        self.row_cost.record_pass(stats.rows, 1e3 * stats.forward_s)
        num_tokens = stats.drafts + sum(accepted for _, accepted in stats.trees)
        self._tokens_per_ms.add(num_tokens, 1e3 * (stats.forward_s + draft_s))
