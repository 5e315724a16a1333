"""The size of the trees that the server's drafters grow, where clients leave it to the server: as large as pays.

TreeTuner has the rule. Here a cycle is a pass and the drafting before it, for all sessions in it together: a node takes
its row's time from everybody, and a level's time is divided among the sessions that it is drafted for.
"""

from __future__ import annotations

from collections.abc import Iterable

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.grow import ScoredTree
from outrider_drafters.trees.tree_tuner import RunningRatio, TreeTuner
from outrider_server.scheduling.step_stats import StepStats


class ServerTreeTuner:
    """What has been measured of one drafter on this server, over all sessions."""

    def __init__(self) -> None:
        self._tuner = TreeTuner()
        self._speed = RunningRatio()  # tokens per ms of a cycle
        self._level_ms = RunningRatio()  # of one session's draft

    def shape(self, limits: TreeShape) -> TreeShape:
        """Return the shape of the next tree, within `limits`."""
        return self._tuner.shape(limits, self._speed.value, self._level_ms.value)

    def record_level(self, seconds: float, num_sessions: int) -> None:
        """Record a level that was drafted for so many sessions together."""
        self._level_ms.add(1e3 * seconds / num_sessions, 1.0)

    def record_pass(
        self, stats: StepStats, draft_s: float, drafts: Iterable[tuple[ScoredTree, tuple[int, ...]]]
    ) -> None:
        """Record a pass, the time of the drafting before it, and this drafter's trees with their accepted paths."""
        self._tuner.record_pass(stats.rows, 1e3 * stats.forward_s)
        num_tokens = stats.drafts + sum(accepted for _, accepted in stats.trees)
        self._speed.add(num_tokens, 1e3 * (stats.forward_s + draft_s))
        for drafted, path in drafts:
            self._tuner.record_tree(drafted, path)
