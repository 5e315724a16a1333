"""Measures one answer: what both its statistics and the controller's decisions need is told here, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider_client.connection.session import ClientSession
from outrider_client.controller.mode_controller import ModeController
from outrider_client.core.statistics import Meter, Statistics
from outrider_client.drafting.drafting_thread import AheadDraft
from outrider_drafters.trees.grow import ScoredTree
from outrider_drafters.trees.predraft import TreeOutcome


class Instruments:
    """The meter of one answer and the controller of its client. Times are seconds of `clock`."""

    def __init__(
        self, session: ClientSession, controller: ModeController, heads: Sequence[str], clock: Callable[[], float]
    ) -> None:
        self.clock = clock
        self.controller = controller
        self.meter = Meter(clock(), heads)
        self._session = session
        self._bytes_before = session.num_bytes

    def drafted(self, since: float, num_levels: int) -> None:
        seconds = self.clock() - since
        self.meter.draft_s += seconds
        self.meter.level.take(seconds, num_levels)
        self.controller.record_drafting(seconds, num_levels)

    def ahead_draft_judged(
        self, ahead_draft: AheadDraft, outcome: TreeOutcome, drafted: ScoredTree | None, since: float
    ) -> None:
        """Take note of a verdict for whose outcomes was drafted ahead, and what was waited for the right draft."""
        self.meter.draft_s += self.clock() - since
        self.controller.record_ahead_draft(ahead_draft, outcome)
        if ahead_draft.cost is not None:
            self.meter.ahead_level.take(ahead_draft.cost.seconds, ahead_draft.cost.levels)
        if ahead_draft.num_nodes:
            self.meter.forecasts += 1
            self.meter.hits += drafted is not None
            self.meter.wasted_nodes += ahead_draft.num_nodes - (0 if drafted is None else len(drafted.tree))

    def statistics(self, num_tokens: int, num_unverified: int) -> Statistics:
        up, down = self._session.num_bytes
        return self.meter.snapshot(
            self.clock(),
            new_tokens=num_tokens,
            unverified=num_unverified,
            bytes_up=up - self._bytes_before[0],
            bytes_down=down - self._bytes_before[1],
            rtt_s=self._session.rtt.mean_s or 0.0,
        )
