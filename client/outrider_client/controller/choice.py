"""The modes and parameters that the controller chooses between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.frames import Codec

OnlineMode = Literal["stream", "server-draft", "stop-and-wait", "proactive", "pipelined"]
SPLIT: tuple[OnlineMode, ...] = ("stop-and-wait", "proactive", "pipelined")
AHEAD: tuple[OnlineMode, ...] = ("proactive", "pipelined")  # modes that draft while a verdict is awaited
NON_SPLIT: tuple[OnlineMode, ...] = ("stream", "server-draft")  # modes whose speed does not depend on the round trip


@dataclass(frozen=True, slots=True)
class Variant:
    """Source of the drafter's features: their codec, and TLI, the target layers that the drafter runs itself.

    `bytes_per_token`: measured weight of a token's features on the link. The factors on tau and on the time of a draft
    level are relative to the variant in use.
    """

    codec: Codec = "int8"
    tli: int = 0
    bytes_per_token: float = 0.0
    tau_factor: float = 1.0
    level_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode with its parameters.

    `levels`: of trees grown while nothing is in flight, or of the server's own; `ahead_levels`: of trees grown ahead of
    a verdict. `probe`: leave the mode after so many tokens, since it only runs to be timed; 0: no probe. `variant` is
    a hint: TLI needs another drafter, and codec_choice.py chooses the codec.
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
