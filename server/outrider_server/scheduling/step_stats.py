"""How busy the model thread is, tick by tick. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_server.engine.engine import Outcome


@dataclass(frozen=True, slots=True)
class TickReport:
    """One pass: `rows` it ran, `prefill_rows` of them without a verdict, for `sessions` of which `drafts` got one, in
    `forward_s` seconds of the model; `waiting` jobs were left for later. `trees`: nodes and accepted nodes of every
    tree that is not empty. `tap_s`: making features; `idle_s`: nothing to do, since the pass before."""

    rows: int
    drafts: int
    prefill_rows: int
    sessions: int
    waiting: int
    forward_s: float
    trees: tuple[tuple[int, int], ...] = ()
    tap_s: float = 0.0
    idle_s: float = 0.0

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], num_waiting: int, tap_s: float, idle_s: float) -> TickReport:
        """Of one pass, or of several that stand for one that failed."""
        judged = [outcome for outcome in outcomes if outcome.walk is not None]
        rows = [outcome.work.num_rows for outcome in outcomes]
        timings = {outcome.timing for outcome in outcomes}
        return cls(
            rows=sum(rows),
            drafts=len(judged),
            prefill_rows=sum(rows) - sum(outcome.work.num_rows for outcome in judged),
            sessions=len(outcomes),
            waiting=num_waiting,
            forward_s=sum(timing.ended - timing.started for timing in timings),
            trees=tuple((len(o.work.tree), len(o.walk.path)) for o in judged if o.walk is not None and o.work.tree),
            tap_s=tap_s,
            idle_s=idle_s,
        )
