"""The size of the trees that the server grows itself, where clients leave it to the server: as large as pays.

TreeTuner has the rule. Here a cycle is a pass and the drafting before it, for all sessions in it together: a node takes
its row's time from everybody, and a level's time is divided among the sessions that it is drafted for. Costs are common
to all sessions. How often drafts come true is each session's own: no client's text makes the trees of others smaller.
"""

from __future__ import annotations

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.tree_tuner import RowCost, RunningRatio, TreeTuner
from outrider_server.scheduling.step_stats import StepStats


class DraftCosts:
    """What passes and the levels of one drafter cost on this server."""

    def __init__(self) -> None:
        self.row_cost = RowCost()
        self._tokens_per_ms = RunningRatio()
        self._level_ms = RunningRatio()  # of one session's draft

    def shape(self, tuner: TreeTuner, limits: TreeShape) -> TreeShape:
        """Return the shape of a session's next tree, within `limits`."""
        return tuner.shape(limits, self._tokens_per_ms.value, self._level_ms.value)

    def record_level(self, seconds: float, num_sessions: int) -> None:
        """Record a level that was drafted for so many sessions together."""
        self._level_ms.add(1e3 * seconds / num_sessions, 1.0)

    def record_pass(self, stats: StepStats, draft_s: float) -> None:
        """Record a pass, and the time of the drafting before it."""
        self.row_cost.record_pass(stats.rows, 1e3 * stats.forward_s)
        num_tokens = stats.drafts + sum(accepted for _, accepted in stats.trees)
        self._tokens_per_ms.add(num_tokens, 1e3 * (stats.forward_s + draft_s))
