"""What running a mode teaches beyond its closed form: how much longer its cycles take, how many of the tokens come.

Times are steady and believed soon. Tokens are as uneven as text is, so that few of them count for little.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_client.controller.choice import OnlineMode
from outrider_client.controller.prediction import Prediction

_HORIZON = 256.0  # cycles
_DOUBT_CYCLES = 4.0  # as if so many had taken as long as predicted
_DOUBT_TOKENS = 60.0  # and so many had come as predicted
_LEAST, _MOST = 0.25, 1.5


@dataclass(frozen=True, slots=True)
class ModeRun:
    """Cycles of one mode, from verdict to verdict."""

    mode: OnlineMode
    cycles: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def plus(self, tokens: int, seconds: float) -> ModeRun:
        return ModeRun(self.mode, self.cycles + 1, self.tokens + tokens, self.seconds + seconds)


class ModeHistory:
    """Of one mode."""

    def __init__(self) -> None:
        self._cycles = self._late_ms = self._tokens = self._predicted = 0.0

    def learn(self, mode_run: ModeRun, predicted: Prediction) -> None:
        """`predicted`: by the closed form alone."""
        self.fade(max(1.0 - mode_run.cycles / _HORIZON, 0.0))
        self._cycles += mode_run.cycles
        self._late_ms += 1e3 * mode_run.seconds - mode_run.cycles * predicted.cycle_ms
        self._tokens += mode_run.tokens
        self._predicted += mode_run.cycles * predicted.tau

    def fade(self, kept: float) -> None:
        """Of what is known, that share is left."""
        self._cycles, self._late_ms = kept * self._cycles, kept * self._late_ms
        self._tokens, self._predicted = kept * self._tokens, kept * self._predicted

    @property
    def late_ms(self) -> float:
        """Of a cycle, beyond the closed form; may be below 0."""
        return self._late_ms / (self._cycles + _DOUBT_CYCLES)

    @property
    def factor(self) -> float:
        """On tokens."""
        return min(max((self._tokens + _DOUBT_TOKENS) / (self._predicted + _DOUBT_TOKENS), _LEAST), _MOST)
