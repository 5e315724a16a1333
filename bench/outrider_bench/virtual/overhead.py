"""Time that programs and kernel take beside link and hardware, which a replay does not have by itself.

Fitted on reports of the real stack, as what three of their variants take longer than in a replay; none by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outrider_bench.core.stats import mean
from outrider_drafters.emulation.pace import Pace
from outrider_netsim import Profile
from outrider_proto.errors import UsageError

STREAM, IN_TURN, AHEAD = "stream", "stop-and-wait", "proactive"  # the modes that it is read from
MetricsByMode = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True, slots=True)
class Overhead:
    """Additional times in ms. Raises UsageError.

    `exchange_ms`: of a draft's round trip, half each way. `level_ms`: of a drafted level, on client and server.
    `ahead_level_ms`: of a level for several outcomes. `between_passes_ms`: between two passes when the next one is
    waiting.
    """

    exchange_ms: float = 0.0
    level_ms: float = 0.0
    ahead_level_ms: float = 0.0
    between_passes_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in ("exchange_ms", "level_ms", "ahead_level_ms", "between_passes_ms"):
            if not 0 <= getattr(self, name) <= 1000:
                raise UsageError(f"{name}={getattr(self, name):g}: need 0 to 1000")

    @classmethod
    def fitted(cls, cases: Sequence[tuple[MetricsByMode, MetricsByMode]]) -> Overhead:
        """Return what the real stack takes longer than a bare replay, averaged over (real, bare) pairs.

        Raises UsageError for a metric that no case has.
        """
        return cls(
            exchange_ms=_more(cases, IN_TURN, "exchange_ms"),
            level_ms=_more(cases, IN_TURN, "level_ms"),
            ahead_level_ms=_more(cases, AHEAD, "ahead_level_ms"),
            between_passes_ms=_more(cases, STREAM, "queue_ms"),
        )

    def on_server(self, pace: Pace) -> Pace:
        """Return hardware whose server takes longer by `level_ms` per level."""
        return replace(pace, server_level_ms=pace.server_level_ms + self.level_ms)

    def drafting_s(self, pace: Pace, outcomes: int) -> float:
        """Return the seconds that a level for `outcomes` takes on the client."""
        more = self.level_ms if outcomes == 1 else self.ahead_level_ms
        return (pace.draft_level_ms * pace.level_factor(outcomes) + more) / 1e3

    def on_link(self, profile: Profile) -> Profile:
        """Return a link that takes longer by the exchange's part."""
        more = self.exchange_ms / 2
        up, down = (replace(direction, base_ms=direction.base_ms + more) for direction in (profile.up, profile.down))
        return replace(profile, up=up, down=down)


def _more(cases: Sequence[tuple[MetricsByMode, MetricsByMode]], mode: str, metric: str) -> float:
    pairs = [tuple(side.get(mode, {}).get(metric) for side in both) for both in cases]
    longer = mean(real - bare for real, bare in pairs if real is not None and bare is not None)
    if longer is None:
        raise UsageError(f"no {metric} of {mode}: make a paced report with the modes {IN_TURN} and {AHEAD}")
    # Noise can make the difference negative.
    return max(longer, 0.0)
