"""Rules that choose which head's draft is sent. Knows neither states nor networks.

mean-confidence   every head drafts; the one with the higher mean path confidence is sent (EAGLE and HASS routers)
entropy           every head drafts; the one with the lower entropy on its best path is sent (EAGLE's second router)
keywords          words of the text choose; the others do not draft (HASS's second router)

The gate runs only the first level of the head chosen last. If its likeliest first token has at least the gate's
probability, the other heads do not draft this time. They still receive tokens and features and stay in step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, assert_never, get_args

from outrider_proto.errors import UsageError
from outrider_proto.flag import Flag

if TYPE_CHECKING:  # which imports torch, as the client's command line must not
    from outrider_drafters.routing.confidence import Confidence

Route = Literal["mean-confidence", "entropy", "keywords"]


@dataclass(frozen=True, slots=True)
class Routing:
    """Options of routing. Raises UsageError."""

    route: Annotated[
        Route,
        Flag(
            "With several heads: whose draft is sent. mean-confidence, entropy: the surest head's by that measure."
            " keywords: that of the head whose keywords occur.",
            expert=True,
        ),
    ] = "mean-confidence"
    gate: Annotated[
        float | None,
        Flag(
            "With several heads: let the others rest while the current one gives its first token at least this"
            " probability (0 to 1). Default: off.",
            expert=True,
        ),
    ] = None
    batched: Annotated[
        bool, Flag("With several heads: run the lm_head that they share once for all.", name="batch-heads", expert=True)
    ] = True

    def __post_init__(self) -> None:
        if self.route not in get_args(Route):
            raise UsageError(f"route={self.route!r}: need one of {', '.join(get_args(Route))}")
        if self.gate is not None and not 0 < self.gate <= 1:
            raise UsageError(f"gate={self.gate}: need a probability above 0 and at most 1")
        if self.gate is not None and self.route == "keywords":
            raise UsageError("gate: with route keywords no second head drafts, so there is none to skip; leave it out")

    def needs_comparison(self, first_probability: float) -> bool:
        """True if the current head is unsure enough of its first token that the others draft too."""
        # Not `<`: the probability is NaN where the head would draft nothing.
        return self.gate is None or not first_probability >= self.gate

    def choose(self, drafts: Mapping[int, Confidence], current: int) -> int:
        """Return the head whose tree is sent; of equals the current one, then the first."""
        best = max(self._score(confidence) for confidence in drafts.values())
        equals = [head for head, confidence in drafts.items() if self._score(confidence) == best]
        return current if current in equals else min(equals)

    def _score(self, confidence: Confidence) -> float:
        match self.route:
            case "mean-confidence":
                # The sum, not the mean: for trees of equal size the order is the same, and where min_probability or a
                # small vocabulary cut one short, the mean would prefer the shorter tree.
                return confidence.expected
            case "entropy":
                if confidence.entropy is None:
                    raise UsageError("route=entropy: a draft's entropy was not measured")
                return -confidence.entropy
            case "keywords":
                return 0.0
            case _:
                assert_never(self.route)
