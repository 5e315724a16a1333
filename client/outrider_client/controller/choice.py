"""What the controller can choose between, and what it chose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.frames import Codec

OnlineMode = Literal["stream", "server-draft", "stop-and-wait", "proactive", "pipelined"]
SPLIT: tuple[OnlineMode, ...] = ("stop-and-wait", "proactive", "pipelined")
AHEAD: tuple[OnlineMode, ...] = ("proactive", "pipelined")  # those that draft while a verdict is awaited
NON_SPLIT: tuple[OnlineMode, ...] = ("stream", "server-draft")  # blind to the round trip


@dataclass(frozen=True, slots=True)
class Variant:
    """A way of feeding the drafter: the features' codec and TLI, the target layers that the drafter runs itself.

    The factors, on tau and on the time of a draft level, are against the variant in use.
    """

    codec: Codec = "int8"
    tli: int = 0
    bytes_per_token: float = 0.0
    tau_factor: float = 1.0
    level_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """`levels`: of a tree grown while nothing is in flight, or of the server's own; `ahead_levels`: of those grown
    ahead of a verdict. `probe`: leave after so many tokens, it is there to be timed; 0: no probe.

    `variant` is a hint: TLI takes another drafter, and for the codec see coarseness.py.
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
    variant: Variant = Variant()
    probe: int = 0
    why: str = field(default="", compare=False)

    @property
    def shape(self) -> TreeShape:
        return TreeShape(self.breadth, self.levels, self.budget)

    @property
    def ahead_shape(self) -> TreeShape:
        return TreeShape(self.breadth, self.ahead_levels, self.ahead_budget)
