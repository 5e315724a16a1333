"""Chooses how far draft trees are worth growing, from what passes and levels cost and what nodes bring. Pure.

A cycle brings tau tokens in T ms. The tree with the largest tau / T holds what brings more than r = tau / T tokens for
each ms that it costs, r being that of the cycles so far (Dinkelbach 1967, on fractional programs):

    a node      accepted with probability p, costs row_ms of the target's pass         p > r row_ms
    a level     expands nodes of probability P in all, of which q P goes on below,     q P > r (level_ms + row_ms)
                costs level_ms of the drafter; nothing where the pass before gave it, too: only every
                levels_per_pass-th level is a pass

p is the drafter's own probability of the node's path, times the share of such probabilities that has come true. So
trees are deep where the drafter is sure, and end early where it is not. A copy has no probability but 1: in its place
stands the share of such nodes that came true where the node before did. The first drafts have fixed sizes, from which
the costs are learnt.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.grow import ScoredTree
from outrider_proto.tree import ROOT

_TRIALS = (16, 4, 32, 8, 1, 24, 2, 32, 4, 16, 1, 24)  # nodes of the first drafts
_TRIAL_BREADTH = 4
_TRIAL_LEVELS, _DEEP_TRIAL_LEVELS = 4, 8
_DEEP_TRIAL = 24  # nodes: four levels of a chain are too near to one level to show what a row costs
_HORIZON = 40  # verdicts
_PASSES = 64
_APART = 4  # rows between two passes whose times are compared
_PRIOR = 0.5  # tokens of a tree's probability, to begin with
_SURE = 0.5  # a node at least as likely is always tried, and the first of a copy: else nothing would be learnt any more
_LEAST_CERTAINTY = 0.05  # copies that never came true must not become impossible


class RunningRatio:
    """The ratio of two sums over about the last `horizon` samples, which begin at `prior`; None while they are 0."""

    def __init__(self, horizon: int = _HORIZON, prior: float = 0.0) -> None:
        self._kept = 1.0 - 1.0 / horizon
        self._part = self._whole = prior

    def add(self, part: float, whole: float) -> None:
        self._part = self._kept * self._part + part
        self._whole = self._kept * self._whole + whole

    @property
    def value(self) -> float | None:
        return self._part / self._whole if self._whole else None


class RowCost:
    """What another row adds to a pass of the target, from the times of recent passes."""

    def __init__(self) -> None:
        self._passes: deque[tuple[int, float]] = deque(maxlen=_PASSES)
        self._num_passes = 0
        self.row_ms: float | None = None  # time of another row; None while passes of different sizes are lacking

    def record_pass(self, num_rows: int, ms: float) -> None:
        """Record the time of a pass."""
        self._passes.append((num_rows, ms))
        self._num_passes += 1
        self.row_ms = self._slope() if len(self._passes) >= len(_TRIALS) else None

    @property
    def next_trial(self) -> int:
        """Number of nodes to try, while there is no `row_ms`: another one for each pass."""
        return _TRIALS[self._num_passes % len(_TRIALS)]

    def _slope(self) -> float | None:
        rows, ms = np.array(self._passes).T
        # The median over pairs (Theil and Sen): one pass that the machine held up must not count.
        apart, slower = rows[:, None] - rows, ms[:, None] - ms
        slopes = slower[apart >= _APART] / apart[apart >= _APART]
        return max(float(np.median(slopes)), 0.0) if len(slopes) else None


class TreeTuner:
    """What is known of the trees of one drafter and client; several may share their target's `row_cost`."""

    def __init__(self, row_cost: RowCost | None = None, levels_per_pass: int = 1) -> None:
        self.row_cost = RowCost() if row_cost is None else row_cost
        self._levels_per_pass = levels_per_pass
        self._accepted = RunningRatio(prior=_PRIOR)  # nodes, of those expected
        self._certain = RunningRatio(prior=_PRIOR)  # nodes of which the drafter was certain, of those that were reached
        self._continuing = RunningRatio(prior=_PRIOR)  # probability of the second level, of that of the first

    def record_tree(self, drafted: ScoredTree, path: Sequence[int]) -> None:
        """Record the accepted path of a tree."""
        probabilities = self._probabilities(drafted)
        self._accepted.add(len(path), sum(probabilities))
        reached = [node for node in _certain_nodes(drafted) if drafted.tree.parents[node] in (ROOT, *path)]
        if reached:
            self._certain.add(len(set(reached) & set(path)), len(reached))
        levels = [0.0, 0.0]
        for probability, depth in zip(probabilities, drafted.tree.depths(), strict=True):
            if depth <= len(levels):
                levels[depth - 1] += probability
        if levels[1]:
            self._continuing.add(levels[1], levels[0])

    def shape(self, limits: TreeShape, tokens_per_ms: float | None, level_ms: float | None) -> TreeShape:
        """Return the next tree's shape within `limits`; `level_ms`: of a pass of levels, 0 where drafting is hidden."""
        row_ms = self.row_cost.row_ms
        if row_ms is None or tokens_per_ms is None or level_ms is None:
            budget = self.row_cost.next_trial
            levels = _DEEP_TRIAL_LEVELS if budget >= _DEEP_TRIAL else _TRIAL_LEVELS
            return replace(
                limits,
                breadth=min(limits.breadth, _TRIAL_BREADTH),
                levels=min(limits.levels, levels),
                budget=min(limits.budget, budget),
            )
        always_tried = min(_SURE, self.certainty)
        return replace(
            limits,
            min_probability=max(limits.min_probability, min(tokens_per_ms * row_ms / self.calibration, always_tried)),
            min_level_probability=tokens_per_ms * (level_ms + row_ms) / (self.calibration * self._continued),
            levels_per_pass=self._levels_per_pass,
            certainty=self.certainty,
        )

    @property
    def calibration(self) -> float:
        """Accepted nodes over the sum of the drafter's probabilities."""
        return self._accepted.value or 1.0

    @property
    def certainty(self) -> float:
        """Probability of a node of which the drafter says 1."""
        return max(self._certain.value or 1.0, _LEAST_CERTAINTY)

    @property
    def _continued(self) -> float:
        """Share of the first level's probability that the second one had."""
        return min(self._continuing.value or 1.0, 1.0)

    def _probabilities(self, drafted: ScoredTree) -> list[float]:
        """Return every node's probability, with our own certainty."""
        probabilities = [math.exp(score) for score in drafted.scores]
        share = dict.fromkeys(_certain_nodes(drafted), self.certainty)
        shares: list[float] = []  # of each path
        for node, parent in enumerate(drafted.tree.parents):
            shares.append(share.get(node, 1.0) * (1.0 if parent == ROOT else shares[parent]))
        return [probability * part for probability, part in zip(probabilities, shares, strict=True)]


def _certain_nodes(drafted: ScoredTree) -> list[int]:
    """Return the nodes of which the drafter said 1: they are as likely as the node before."""
    scores = drafted.scores
    return [
        node
        for node, parent in enumerate(drafted.tree.parents)
        if scores[node] == (0.0 if parent == ROOT else scores[parent])
    ]
