"""The modes to choose between, and what they are chosen by. None and empty mean not measured yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.tree import MAX_NODES

OnlineMode = Literal["stream", "server-draft", "stop-and-wait", "proactive", "pipelined"]
SPLIT: tuple[OnlineMode, ...] = ("stop-and-wait", "proactive", "pipelined")
AHEAD: tuple[OnlineMode, ...] = ("proactive", "pipelined")  # modes that draft while a verdict is awaited
NON_SPLIT: tuple[OnlineMode, ...] = ("stream", "server-draft")  # modes whose speed does not depend on the round trip


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode with its parameters."""

    mode: OnlineMode
    levels: int = 5  # of trees grown while nothing is in flight, or of the server's own
    breadth: int = 4
    budget: int = 16
    ahead_levels: int = 5  # of trees grown ahead of a verdict
    ahead_budget: int = 16
    outcomes: int = 1
    in_flight: int = 1
    wait_for_features: bool = False
    probe: int = 0  # tokens after which to leave the mode, which only runs to be timed; 0: no probe
    why: str = field(default="", compare=False)

    @property
    def shape(self) -> TreeShape:
        return TreeShape(self.breadth, self.levels, self.budget)

    @property
    def ahead_shape(self) -> TreeShape:
        return TreeShape(self.breadth, self.ahead_levels, self.ahead_budget)


@dataclass(frozen=True, slots=True)
class ModeLimits:
    """Limits set by server, drafter and user; stream is always among the modes."""

    modes: frozenset[OnlineMode] = frozenset(("stream",))
    shape: TreeShape = field(default_factory=TreeShape)
    fixed: bool = False  # `shape` is not just the default of draft trees, but the only one
    max_levels: int = 12
    max_nodes: int = MAX_NODES
    in_flight: int = 2
    outcomes: int | None = None  # None leaves it to the controller, as the next one
    wait_for_features: bool | None = None
    bytes_per_token: float = 0.0  # of a token's features on the link


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measurements of one client over all its answers. Times in ms, rates in bit/s."""

    limits: ModeLimits = field(default_factory=ModeLimits)
    rtt_ms: float | None = None
    jitter_ms: float = 0.0
    verify_ms: float | None = None  # the target's pass over a draft, with the wait for it
    stream_ms: float | None = None  # between tokens of a target that decodes alone
    draft_level_ms: float | None = None
    server_level_ms: float | None = None
    acceptance: tuple[float, ...] = ()  # entry k: probability that token k + 1 of a draft is, given the first k were
    hit_rates: Mapping[int, float] = field(default_factory=dict)  # by number of outcomes drafted ahead
    hit_levels: float = 5.0  # of the trees behind these
    batch_factors: Mapping[int, float] = field(default_factory=dict)  # on a level's time, by number of outcomes
    staleness_factor: float = 1.0  # on tau, if a draft lacks the newest features
    stale_share: float = 0.0  # of the drafts behind `acceptance` that did
    features_ms: float | None = None  # from a verdict to its features
    down_bps: float | None = None
    late_ms: Mapping[OnlineMode, float] = field(default_factory=dict)  # of a cycle beyond its closed form, by mode

    @property
    def is_cold(self) -> bool:
        """Return whether no pass of the target was timed yet."""
        return self.verify_ms is None and self.stream_ms is None
