"""How far drafts are accepted, position by position. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from outrider_client.core.events import Cycle
from outrider_proto.frames import Draft


@dataclass(frozen=True, slots=True)
class ByPosition:
    """Of the verdicts on trees `reached[d]` is the share that accepted at least d + 1 drafted tokens, `kept[d]` their
    share of those that had accepted d; `rate` is accepted over drafted tokens."""

    reached: tuple[float, ...]
    kept: tuple[float, ...]
    rate: float


def by_position(cycles: Sequence[Cycle]) -> ByPosition:
    """Cycles whose request was a draft tree; none at all give empty shares."""
    drafts = [(cycle.request.tree, len(cycle.verdict.path)) for cycle in cycles if isinstance(cycle.request, Draft)]
    levels = max((max(tree.depths(), default=0) for tree, _ in drafts), default=0)
    at_least = [sum(1 for _, accepted in drafts if accepted >= depth) for depth in range(levels + 1)]
    drafted = sum(len(tree) for tree, _ in drafts)
    return ByPosition(
        reached=tuple(count / len(drafts) for count in at_least[1:]),
        kept=tuple(count / before if before else 0.0 for before, count in pairwise(at_least)),
        rate=sum(accepted for _, accepted in drafts) / drafted if drafted else 0.0,
    )
