"""The size of draft trees to ask clients for while the server is busy. No clock: passes and their times are arguments.

A client that has the server to itself may make its trees as large as it likes; clients that share passes each wait for
the nodes of all. The server asks for the size with the best goodput (Liu et al. 2024, arXiv 2406.14066):

                    tokens a draft       1 + gain * log2(1 + nodes)      gain: from the trees that were judged
    goodput(nodes)  --------------   =   --------------------------
                      their time         shared rows + 1 + nodes         shared: what a step takes without its nodes,
                                                                         divided among its drafts, in rows

A step lasts until the next one can begin: the pass, its features, and the frames that go in and out meanwhile, which
for a small target take as long as the pass.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import log2

import numpy as np

from outrider_proto.tree import MAX_NODES
from outrider_server.scheduling.step_stats import StepStats

NO_LIMIT = 0
_ANY = MAX_NODES + 1
_RUNGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_REVIEW_EVERY = 8  # passes
_REMEMBERED = 128
_BUSY, _AT_EASE = 0.8, 0.6  # shares of the time in which there is work
_SHARED = 2.0  # drafts ready for each pass: with fewer, no client waits for another's nodes
_FULL = 0.75  # share of the row budget: above it, drafts soon wait for a second pass
_PATIENCE = 2  # reviews
_GAIN = 0.6  # assumed until a tree was verified
_KEPT = 0.98  # decay of what is known of trees, for each pass
# Least relative deviation of rows per draft: equal sizes cannot tell the cost of drafts from that of rows.
_VARIED = 0.1


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """Averages of recent passes."""

    drafts: float  # ready for each pass
    busy: float  # share of the time in which there was work
    shared_rows: float | None  # time of a draft without its nodes, in rows; None: not known
    gain: float = _GAIN  # tokens gained by doubling a tree


def best_nodes(load: LoadEstimate, batch_tokens: int) -> int:
    """Return the best tree size, at least 1, if all clients use it."""
    fits = int(_FULL * batch_tokens / max(load.drafts, 1.0)) - 1
    rungs = [rung for rung in _RUNGS if rung <= fits] or [1]
    if load.shared_rows is None:
        return rungs[-1]
    shared = load.shared_rows
    return max(rungs, key=lambda nodes: (1 + load.gain * log2(1 + nodes)) / (shared + 1 + nodes))


class TreeBudget:
    """`nodes` is the size to ask for, NO_LIMIT for none. It falls by halves and rises by rungs."""

    def __init__(self, batch_tokens: int) -> None:
        self._most = _ANY
        self._batch_tokens = batch_tokens
        self._steps: deque[tuple[StepStats, float]] = deque(maxlen=_REMEMBERED)  # and seconds without idle time
        self._num_unseen = 0  # passes since the last review
        self._reviewed_at = self._ended_at = 0.0
        self._times: list[float] | None = None  # seconds of a step: fixed, for each draft, for each row
        self._doublings = self._accepted = 0.0
        self._goals: deque[int] = deque([_ANY], maxlen=_PATIENCE)  # of the last reviews

    @property
    def nodes(self) -> int:
        return NO_LIMIT if self._most == _ANY else self._most

    def take(self, report: StepStats, now: float) -> None:
        """Take the statistics of a pass that ended at `now` seconds."""
        if not self._steps:
            self._reviewed_at = self._ended_at = now - report.forward_s - report.idle_s
        # The whole time, not only the model's: every draft also costs features and frames, and larger trees save those.
        self._steps.append((report, now - self._ended_at - report.idle_s))
        self._ended_at = now
        self._doublings = _KEPT * self._doublings + sum(log2(1 + nodes) for nodes, _ in report.trees)
        self._accepted = _KEPT * self._accepted + sum(accepted for _, accepted in report.trees)
        self._num_unseen += 1
        if self._num_unseen >= _REVIEW_EVERY:
            self._review(now)

    def _review(self, now: float) -> None:
        """Change the size once reviews in a row agree."""
        self._goals.append(self._goal(self._load(now)))
        self._num_unseen, self._reviewed_at = 0, now
        if max(self._goals) < self._most:
            self._most = max(self._goals)
        elif min(self._goals) > self._most:
            self._most = min(self._goals)

    def _goal(self, load: LoadEstimate) -> int:
        if load.drafts < _SHARED:
            return _ANY
        if load.busy < _BUSY:
            return self._larger if load.busy < _AT_EASE else self._most
        best = best_nodes(load, self._batch_tokens)
        now = min(self._most, max((size for stats, _ in self._steps for size, _ in stats.trees), default=1))
        if best >= now:
            return min(best, self._larger) if self._most != _ANY else _ANY
        # At most by halves: only passes with smaller trees tell the cost of nodes from that of drafts.
        return max(best, now // 2)

    def _load(self, now: float) -> LoadEstimate:
        recent = [stats for stats, _ in list(self._steps)[-self._num_unseen :]]
        took_s = max(now - self._reviewed_at, 1e-9)
        drafts = sum(seen.drafts + seen.waiting for seen in recent) / max(len(recent), 1)
        judging = np.array([(stats.drafts, stats.rows, s) for stats, s in self._steps if stats.drafts], np.float64)
        if len(judging) >= _REVIEW_EVERY:
            sizes = judging[:, 1] / judging[:, 0]
            if self._times is None or sizes.std() > _VARIED * sizes.mean():
                terms = np.column_stack([np.ones(len(judging)), judging[:, :2]])
                self._times = np.linalg.lstsq(terms, judging[:, 2], rcond=None)[0].tolist()
        return LoadEstimate(
            drafts=drafts,
            busy=1 - sum(seen.idle_s for seen in recent) / took_s,
            shared_rows=None if self._times is None else _shared_rows(drafts, *self._times),
            gain=self._accepted / self._doublings if self._doublings else _GAIN,
        )

    @property
    def _larger(self) -> int:
        """The next rung."""
        return next((rung for rung in _RUNGS if rung > self._most), _ANY)


def _shared_rows(drafts: float, fixed_s: float, draft_s: float, row_s: float) -> float | None:
    """Return what LoadEstimate.shared_rows means."""
    return max((fixed_s / max(drafts, 1.0) + draft_s) / row_s, 0.0) if row_s > 0 else None
