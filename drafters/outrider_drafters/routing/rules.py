"""Which of several heads drafts: decisions only. Knows neither states nor networks.

mean-confidence   every head drafts; the one with the higher mean path confidence is sent (EAGLE and HASS routers)
entropy           every head drafts; the one with the lower entropy on its best path is sent (EAGLE's second router)
keywords          words of the text choose; the others do not draft (HASS's second router)

The means of two trees can only be compared over the same N. Trees of one shape have it, and there the order of the
means is that of the sums; where `min_probability` or a small vocabulary cut one short, the sum still says which tree
promises more, and the mean would prefer the shorter one. So it is the sums that are compared.

The gate asks the head that was chosen last for its first level alone. If its likeliest first token has at least the
gate's probability, the others are spared this draft. They take tokens and features all the same and stay in step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, assert_never, get_args

from outrider_proto.errors import UsageError

if TYPE_CHECKING:  # which imports torch, as the client's command line must not
    from outrider_drafters.routing.confidence import Confidence

Route = Literal["mean-confidence", "entropy", "keywords"]


@dataclass(frozen=True, slots=True)
class Routing:
    """`gate`: probability from which the head in use is not compared with the others; None: always compare.
    `batched`: draft all heads in one batch where their weights can be stacked. Raises UsageError."""

    route: Route = "mean-confidence"
    gate: float | None = None
    batched: bool = True

    def __post_init__(self) -> None:
        if self.route not in get_args(Route):
            raise UsageError(f"route={self.route!r}: need one of {', '.join(get_args(Route))}")
        if self.gate is not None and not 0 < self.gate <= 1:
            raise UsageError(f"gate={self.gate}: need a probability above 0 and at most 1")
        if self.gate is not None and self.route == "keywords":
            raise UsageError("gate: with route keywords no second head drafts, so there is none to skip; leave it out")

    def opens(self, first_probability: float) -> bool:
        """Whether the head in use is unsure enough of its likeliest first token to ask the others."""
        return self.gate is None or first_probability < self.gate

    def choose(self, drafts: Mapping[int, Confidence], current: int) -> int:
        """The head, of those that drafted, whose tree is sent; of equals the one in use, then the first."""
        best = max(self._worth(confidence) for confidence in drafts.values())
        equals = [head for head, confidence in drafts.items() if self._worth(confidence) == best]
        return current if current in equals else min(equals)

    def _worth(self, confidence: Confidence) -> float:
        match self.route:
            case "mean-confidence":
                return confidence.expected
            case "entropy":
                if confidence.entropy is None:
                    raise UsageError("route=entropy: a draft's entropy was not measured")
                return -confidence.entropy
            case "keywords":
                return 0.0
            case _:
                assert_never(self.route)
