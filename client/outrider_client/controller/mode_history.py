"""Measured deviation of a mode from its closed form: how much longer its cycles take, how many of the tokens come.

Times are steady and trusted soon. Numbers of tokens vary with the text, so that few of them have little weight.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_client.controller.measurements import OnlineMode
from outrider_client.controller.prediction import Prediction

_HORIZON = 256.0  # cycles
_DOUBT_CYCLES = 4.0  # prior weight: cycles that took as long as predicted
_DOUBT_TOKENS = 60.0  # prior weight: tokens that came as predicted
_LEAST, _MOST = 0.25, 1.5


@dataclass(frozen=True, slots=True)
class ModeRun:
    """Cycles run in one mode, from verdict to verdict."""

    mode: OnlineMode
    cycles: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def plus(self, tokens: int, seconds: float) -> ModeRun:
        return ModeRun(self.mode, self.cycles + 1, self.tokens + tokens, self.seconds + seconds)


class ModeHistory:
    """Deviation of one mode from its predictions."""

    def __init__(self) -> None:
        self._cycles = self._late_ms = self._tokens = self._predicted = 0.0

    def learn(self, mode_run: ModeRun, predicted: Prediction) -> None:
        """Add cycles. `predicted` is the closed form alone, without corrections."""
        self.fade(max(1.0 - mode_run.cycles / _HORIZON, 0.0))
        self._cycles += mode_run.cycles
        self._late_ms += 1e3 * mode_run.seconds - mode_run.cycles * predicted.cycle_ms
        self._tokens += mode_run.tokens
        self._predicted += mode_run.cycles * predicted.tau

    def fade(self, share: float) -> None:
        self._cycles, self._late_ms = share * self._cycles, share * self._late_ms
        self._tokens, self._predicted = share * self._tokens, share * self._predicted

    @property
    def late_ms(self) -> float:
        """Time of a cycle beyond the closed form; may be negative."""
        return self._late_ms / (self._cycles + _DOUBT_CYCLES)

    @property
    def factor(self) -> float:
        """Factor on the number of tokens."""
        return min(max((self._tokens + _DOUBT_TOKENS) / (self._predicted + _DOUBT_TOKENS), _LEAST), _MOST)
