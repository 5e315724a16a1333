"""How far the target follows the drafter: acceptance by position, and which of a node's children it takes. Pure."""

from __future__ import annotations

from outrider_client.controller.prediction import ACCEPTANCE_DECAY, PRIOR_ACCEPTANCE
from outrider_proto.tree import ROOT, DraftTree

_KEPT = 1 - 1 / 160  # of what is known, by each verdict
_HALF_LIFE_S = 30.0  # of it while no one judges drafts: the text moves on
_PRIOR_WEIGHT = 6  # verdicts
_ENOUGH = 32  # tokens, for their ranks


class AcceptanceEstimator:
    """A position starts from what is known of the one before it, the first from a prior on the bright side, and goes
    back there while it is not tried. So trees that have become shallow do not stay so by an old disappointment."""

    def __init__(self) -> None:
        self._tried: list[float] = []
        self._accepted: list[float] = []
        self._ranks: list[int] = []

    def judged(self, levels: int, num_accepted: int) -> None:
        """A draft of that many levels. The text's end is a rejection like others: no draft brings tokens beyond it."""
        self._age(_KEPT)
        missing = levels - len(self._tried)
        self._tried += [0.0] * missing
        self._accepted += [0.0] * missing
        for position in range(min(levels, num_accepted + 1)):
            self._tried[position] += 1.0
            self._accepted[position] += position < num_accepted

    def ranked(self, tree: DraftTree, path: tuple[int, ...]) -> None:
        for parent, node in zip((ROOT, *path), path, strict=False):
            rank = tree.parents[:node].count(parent)
            self._ranks += [0] * (rank + 1 - len(self._ranks))
            self._ranks[rank] += 1

    def fade(self, seconds: float) -> None:
        """No draft was judged for so long."""
        self._age(0.5 ** (seconds / _HALF_LIFE_S))

    @property
    def num_judged(self) -> float:
        """Drafts that are remembered."""
        return self._tried[0] if self._tried else 0.0

    @property
    def by_position(self) -> tuple[float, ...]:
        shares: list[float] = []
        for tried, accepted in zip(self._tried, self._accepted, strict=True):
            prior = shares[-1] * ACCEPTANCE_DECAY if shares else PRIOR_ACCEPTANCE
            shares.append((accepted + _PRIOR_WEIGHT * prior) / (tried + _PRIOR_WEIGHT))
        return tuple(shares)

    @property
    def ranks(self) -> tuple[float, ...]:
        """Shares; empty while there are few."""
        total = sum(self._ranks)
        return tuple(count / total for count in self._ranks) if total >= _ENOUGH else ()

    def _age(self, kept: float) -> None:
        self._tried = [tried * kept for tried in self._tried]
        self._accepted = [accepted * kept for accepted in self._accepted]


def path_of(tree: DraftTree, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """The nodes that a target would have accepted which wrote `tokens` after the root."""
    path: list[int] = []
    for token in tokens:
        node = tree.child(path[-1] if path else ROOT, token)
        if node is None:
            break
        path.append(node)
    return tuple(path)
