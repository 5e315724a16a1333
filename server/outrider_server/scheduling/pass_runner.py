"""Runs passes on the engine so that one that fails ends only the session at fault."""

from __future__ import annotations

import logging
import time
from collections import abc
from collections.abc import Callable
from typing import TypeAlias

from outrider_proto.errors import Reason, Refusal
from outrider_server.engine.engine import Engine, StepInput, StepResult
from outrider_server.scheduling.fault_handler import FaultHandler, is_lost_device
from outrider_server.scheduling.request import Request

_log = logging.getLogger(__name__)
_DEFERRED_ROWS = 64  # of a session, whose features are made together: at little more than the cost of one
_NO_NUMBERS = "the target's logits for this text are not finite (NaN or infinite): no token can be chosen"

Planned: TypeAlias = abc.Sequence[tuple[Request, StepInput]]
Results: TypeAlias = abc.Sequence[tuple[Request, StepResult]]


class PassRunner:
    """Runs, commits and taps passes; features that nobody reads yet wait for each other."""

    def __init__(self, engine: Engine, faults: FaultHandler) -> None:
        self._engine = engine
        self._faults = faults

    def run(self, planned: Planned, meanwhile: Callable[[], None] = lambda: None) -> Results:
        """Run one pass, and `meanwhile` beside it; if it fails, run one for each request that is in it.

        Return the results that can stand.
        """
        if not planned:
            return []
        try:
            launched = self._engine.launch([step_input for _, step_input in planned])
        except Exception as error:
            return self._run_apart(planned, error)
        meanwhile()
        try:
            results = self._engine.finish(launched)
        except Exception as error:
            return self._run_apart(planned, error)
        for (request, _), result in zip(planned, results, strict=True):
            if not result.finite:
                _log.warning("a session failed: %s", _NO_NUMBERS)
                self._faults.fail(request, Refusal(Reason.INTERNAL, _NO_NUMBERS))
        return [(request, result) for (request, _), result in zip(planned, results, strict=True) if result.finite]

    def commit(self, results: Results) -> Results:
        """Apply the results; return those where that succeeded."""
        failures = self._engine.commit_all([result for _, result in results])
        for (request, _), error in zip(results, failures, strict=True):
            if error is not None:
                self._faults.fail(request, error)
        return [pair for pair, error in zip(results, failures, strict=True) if error is None]

    def tap(self, committed: Results) -> float:
        """Make features for all together or, if that fails, for each alone; return the seconds it took."""
        started = time.monotonic()
        try:
            self._engine.tap([request.sequence for request, _ in committed if not self._can_wait(request)])
        except Exception as error:
            if len(committed) > 1:
                return sum(self.tap([pair]) for pair in committed)
            self._faults.fail(committed[0][0], error)
            return time.monotonic() - started
        tap_s = time.monotonic() - started
        for request, _ in committed:
            try:
                request.finish_step(tap_s)
            except Exception as error:
                self._faults.fail(request, error)
        return tap_s

    def _run_apart(self, failed: Planned, error: Exception) -> Results:
        # An exception does not tell which session caused it.
        if len(failed) > 1 and not is_lost_device(error):
            return [pair for one in failed for pair in self.run([one])]
        for request, _ in failed:
            self._faults.fail(request, error)
        return []

    def _can_wait(self, request: Request) -> bool:
        """Return whether the features of its rows can wait, and prepare for that."""
        sequence = request.sequence
        if request.needs_features or sequence.num_untapped > _DEFERRED_ROWS:
            return False
        sequence.defer_features()
        return True
