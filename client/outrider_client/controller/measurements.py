"""What is known when a mode is chosen. None and empty stand for what no one has measured yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider_client.controller.choice import SPLIT, OnlineMode, Variant
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.errors import UsageError
from outrider_proto.tree import MAX_NODES


@dataclass(frozen=True, slots=True)
class ModeLimits:
    """What server, drafter and user allow. Raises UsageError.

    `shape` is drafted where nothing speaks for another, or always where it is `fixed`. `outcomes` and
    `wait_for_features`: as the user wants it; None leaves it to the controller. `variants`: the first is in use.
    """

    modes: frozenset[OnlineMode] = frozenset(("stream",))
    shape: TreeShape = field(default_factory=TreeShape)
    fixed: bool = False
    max_levels: int = 12
    max_nodes: int = MAX_NODES
    in_flight: int = 2
    outcomes: int | None = None
    wait_for_features: bool | None = None
    variants: tuple[Variant, ...] = (Variant(),)

    def __post_init__(self) -> None:
        if "stream" not in self.modes:
            raise UsageError(f"modes={sorted(self.modes)}: need stream among them")
        if not self.variants:
            raise UsageError("variants=(): need the one in use")
        for name in ("max_levels", "max_nodes", "in_flight"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: need at least 1")

    @property
    def can_split(self) -> bool:
        return not self.modes.isdisjoint(SPLIT)


@dataclass(frozen=True, slots=True)
class Measurements:
    """Times in ms, rates in bits/s. A client's, over all its answers.

    `verify_ms`: a pass over a draft, the wait for it included; `stream_ms`: between two tokens of a target that writes
    alone. `acceptance`: entry k is the share of drafts of which k tokens were accepted and k + 1 drafted that had the
    next one accepted too. `ranks`: the accepted tokens' ranks among their siblings, as shares. `hit_rates`: by number
    of outcomes drafted ahead, from trees of `hit_levels` levels. `batch_factors`: on a level's time, by outcomes.
    `staleness_factor`: on tau, where a draft lacks the newest features; `stale_share`: of the drafts behind
    `acceptance`, those that did. `features_ms`: how long after their verdict the features are in. `late_ms`: by mode,
    how much longer a cycle takes than its closed form says.
    """

    limits: ModeLimits = field(default_factory=ModeLimits)
    rtt_ms: float | None = None
    jitter_ms: float = 0.0
    verify_ms: float | None = None
    stream_ms: float | None = None
    draft_level_ms: float | None = None
    server_level_ms: float | None = None
    acceptance: tuple[float, ...] = ()
    ranks: tuple[float, ...] = ()
    hit_rates: Mapping[int, float] = field(default_factory=dict)
    hit_levels: float = 5.0
    batch_factors: Mapping[int, float] = field(default_factory=dict)
    staleness_factor: float = 1.0
    stale_share: float = 0.0
    features_ms: float | None = None
    down_bps: float | None = None
    up_bps: float | None = None
    late_ms: Mapping[OnlineMode, float] = field(default_factory=dict)

    @property
    def is_cold(self) -> bool:
        """Whether no pass of the target has been timed."""
        return self.verify_ms is None and self.stream_ms is None
