"""Estimates acceptance by position in the draft. Pure."""

from __future__ import annotations

from outrider_client.controller.prediction import ACCEPTANCE_DECAY, PRIOR_ACCEPTANCE
from outrider_proto.tree import ROOT, DraftTree

_KEPT = 1 - 1 / 160  # share of the counts that each verdict leaves
_HALF_LIFE_S = 30.0  # of the counts while no draft is verified: the text moves on
_PRIOR_WEIGHT = 6  # verdicts


class AcceptanceEstimator:
    """Running estimate of acceptance by position in the draft.

    Each position starts from the one before it, the first from an optimistic prior, and returns there while it is not
    tried: so trees that became shallow do not stay so because of old measurements.
    """

    def __init__(self) -> None:
        self._tried: list[float] = []
        self._accepted: list[float] = []

    def judged(self, levels: int, num_accepted: int) -> None:
        """Count the verdict on a draft of `levels` levels. The end of the text counts as a rejection."""
        self._age(_KEPT)
        missing = levels - len(self._tried)
        self._tried += [0.0] * missing
        self._accepted += [0.0] * missing
        # Positions after the first rejection were never tried: they count neither way.
        for position in range(min(levels, num_accepted + 1)):
            self._tried[position] += 1.0
            self._accepted[position] += position < num_accepted

    def fade(self, seconds: float) -> None:
        """Forget part of the counts after `seconds` without a verdict on a draft."""
        self._age(0.5 ** (seconds / _HALF_LIFE_S))

    @property
    def num_judged(self) -> float:
        """Number of verified drafts behind the estimate, older ones counting less."""
        return self._tried[0] if self._tried else 0.0

    @property
    def by_position(self) -> tuple[float, ...]:
        """Probability of acceptance at each position, given acceptance at the ones before."""
        shares: list[float] = []
        for tried, accepted in zip(self._tried, self._accepted, strict=True):
            prior = shares[-1] * ACCEPTANCE_DECAY if shares else PRIOR_ACCEPTANCE
            shares.append((accepted + _PRIOR_WEIGHT * prior) / (tried + _PRIOR_WEIGHT))
        return tuple(shares)

    def _age(self, share: float) -> None:
        self._tried = [tried * share for tried in self._tried]
        self._accepted = [accepted * share for accepted in self._accepted]


def accepted_path(tree: DraftTree, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Return the nodes that the target would have accepted, given the tokens it wrote after the root."""
    path: list[int] = []
    for token in tokens:
        node = tree.child(path[-1] if path else ROOT, token)
        if node is None:
            break
        path.append(node)
    return tuple(path)
