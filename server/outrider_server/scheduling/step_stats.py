"""Statistics of one step of the engine loop. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_server.engine.engine import StepResult


@dataclass(frozen=True, slots=True)
class StepStats:
    """One pass over `sessions` sessions, of which `drafts` got a verdict.

    `rows` ran, `prefill_rows` of them without a verdict, in `forward_s` seconds of the model; `waiting` requests were
    left for later. `trees`: nodes and accepted nodes of every tree that is not empty. `tap_s`: time for features;
    `idle_s`: time without work since the pass before.
    """

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
    def of(cls, results: Sequence[StepResult], num_waiting: int, tap_s: float, idle_s: float) -> StepStats:
        """Summarize one pass, or the several that replace one that failed."""
        accepted = [result for result in results if result.accepted is not None]
        rows = [result.step_input.num_rows for result in results]
        # A set: results of one pass share one timing.
        timings = {result.timing for result in results}
        return cls(
            rows=sum(rows),
            drafts=len(accepted),
            prefill_rows=sum(rows) - sum(result.step_input.num_rows for result in accepted),
            sessions=len(results),
            waiting=num_waiting,
            forward_s=sum(timing.ended - timing.started for timing in timings),
            trees=tuple(
                (len(o.step_input.tree), len(o.accepted.path))
                for o in accepted
                if o.accepted is not None and o.step_input.tree
            ),
            tap_s=tap_s,
            idle_s=idle_s,
        )
