"""The modes and parameters that the controller chooses between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from outrider_drafters.contracts.tree_shape import TreeShape

OnlineMode = Literal["stream", "server-draft", "stop-and-wait", "proactive", "pipelined"]
SPLIT: tuple[OnlineMode, ...] = ("stop-and-wait", "proactive", "pipelined")
AHEAD: tuple[OnlineMode, ...] = ("proactive", "pipelined")  # modes that draft while a verdict is awaited
NON_SPLIT: tuple[OnlineMode, ...] = ("stream", "server-draft")  # modes whose speed does not depend on the round trip


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode with its parameters.

    `levels`: of trees grown while nothing is in flight, or of the server's own; `ahead_levels`: of trees grown ahead of
    a verdict. `probe`: leave the mode after so many tokens, since it only runs to be timed; 0: no probe.
    """

    mode: OnlineMode
    levels: int = 5
    breadth: int = 4
    budget: int = 16
    ahead_levels: int = 5
    ahead_budget: int = 16
    outcomes: int = 1
    in_flight: int = 1
    wait_for_features: bool = False
    probe: int = 0
    why: str = field(default="", compare=False)

    @property
    def shape(self) -> TreeShape:
        return TreeShape(self.breadth, self.levels, self.budget)

    @property
    def ahead_shape(self) -> TreeShape:
        return TreeShape(self.breadth, self.ahead_levels, self.ahead_budget)
