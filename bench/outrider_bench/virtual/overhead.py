"""What a replay does not have of itself: time that programs and kernel take beside link and hardware. Declared, as it
was measured on the real stack; none unless asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider_drafters.pace import Pace
from outrider_netsim import Profile
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Overhead:
    """`exchange_ms`: of a draft's way there and back, in equal parts. `level_ms`: of a level of drafting, here and on
    the server. `between_passes_ms`: between two passes where the next one is waiting. Raises UsageError."""

    exchange_ms: float = 0.0
    level_ms: float = 0.0
    between_passes_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in ("exchange_ms", "level_ms", "between_passes_ms"):
            if not 0 <= getattr(self, name) <= 1000:
                raise UsageError(f"{name}={getattr(self, name):g}: need 0 to 1000")

    def on_pace(self, pace: Pace) -> Pace:
        """Hardware whose levels take so much longer."""
        here, there = pace.draft_level_ms + self.level_ms, pace.server_level_ms + self.level_ms
        return replace(pace, draft_level_ms=here, server_level_ms=there)

    def on_link(self, profile: Profile) -> Profile:
        """A link that takes longer by the exchange's part."""
        more = self.exchange_ms / 2
        up, down = (replace(way, base_ms=way.base_ms + more) for way in (profile.up, profile.down))
        return replace(profile, up=up, down=down)
