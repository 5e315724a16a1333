"""The modes to choose between, and what they are chosen by. None and empty mean not measured yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.errors import UsageError
from outrider_proto.tree import MAX_NODES

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


@dataclass(frozen=True, slots=True)
class ModeLimits:
    """Limits set by server, drafter and user. Raises UsageError.

    `shape`: the default shape of draft trees, or the only one if `fixed`. `outcomes` and `wait_for_features`: set by
    the user; None leaves them to the controller. `bytes_per_token`: of a token's features on the link.
    """

    modes: frozenset[OnlineMode] = frozenset(("stream",))
    shape: TreeShape = field(default_factory=TreeShape)
    fixed: bool = False
    max_levels: int = 12
    max_nodes: int = MAX_NODES
    in_flight: int = 2
    outcomes: int | None = None
    wait_for_features: bool | None = None
    bytes_per_token: float = 0.0

    def __post_init__(self) -> None:
        if "stream" not in self.modes:
            raise UsageError(f"modes={sorted(self.modes)}: need stream among them")
        for name in ("max_levels", "max_nodes", "in_flight"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: need at least 1")


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measurements of one client over all its answers. Times in ms, rates in bit/s.

    `verify_ms`: the target's pass over a draft, with the wait for it; `stream_ms`: time between tokens of a target that
    decodes alone. `acceptance`: entry k is the probability that token k + 1 of a draft is accepted, given that the
    first k were. `hit_rates`: by number of outcomes drafted ahead, from trees of `hit_levels` levels. `batch_factors`:
    on a level's time, by number of outcomes.
    `staleness_factor`: on tau, if a draft lacks the newest features; `stale_share`: share of the drafts behind
    `acceptance` that did. `features_ms`: delay of the features after their verdict. `late_ms`: by mode, how much longer
    a cycle takes than its closed form predicts.
    """

    limits: ModeLimits = field(default_factory=ModeLimits)
    rtt_ms: float | None = None
    jitter_ms: float = 0.0
    verify_ms: float | None = None
    stream_ms: float | None = None
    draft_level_ms: float | None = None
    server_level_ms: float | None = None
    acceptance: tuple[float, ...] = ()
    hit_rates: Mapping[int, float] = field(default_factory=dict)
    hit_levels: float = 5.0
    batch_factors: Mapping[int, float] = field(default_factory=dict)
    staleness_factor: float = 1.0
    stale_share: float = 0.0
    features_ms: float | None = None
    down_bps: float | None = None
    late_ms: Mapping[OnlineMode, float] = field(default_factory=dict)

    @property
    def is_cold(self) -> bool:
        """Return whether no pass of the target was timed yet."""
        return self.verify_ms is None and self.stream_ms is None
