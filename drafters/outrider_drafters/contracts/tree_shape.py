"""The shape of a draft tree: limits for a dynamic one, or fixed choices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_proto.errors import UsageError
from outrider_proto.flag import Flag
from outrider_proto.tree import MAX_NODES

MAX_BREADTH = 64
MAX_LEVELS = 64


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Limits of a dynamic tree: `breadth` nodes expanded per level, `levels` levels, the best `budget` nodes kept.

    No level is expanded whose nodes are together less likely than `min_level_probability`, unless the pass that gave
    its nodes has given their successors, too: of `levels_per_pass` levels only the last is so limited. `certainty`: the
    probability of a node of which the drafter says 1, as copies do; scores stay the drafter's own.
    EAGLE's total_token/depth/top_k T/D/k is breadth k, levels D + 1, budget T - 1. Raises UsageError.
    """

    breadth: Annotated[int, Flag("Nodes of the draft tree that are expanded per level.", expert=True)] = 4
    levels: Annotated[int, Flag("Levels of the draft tree.", expert=True)] = 5
    budget: Annotated[int, Flag("Nodes of the draft tree without its root.", expert=True)] = 16
    min_probability: Annotated[
        float, Flag("Leave out nodes whose path from the root is less likely than this (0 to 1).", expert=True)
    ] = 0.0
    min_level_probability: float = 0.0
    levels_per_pass: int = 1
    certainty: float = 1.0

    def __post_init__(self) -> None:
        for name, limit in (
            ("breadth", MAX_BREADTH),
            ("levels", MAX_LEVELS),
            ("budget", MAX_NODES),
            ("levels_per_pass", MAX_LEVELS),
        ):
            if not 1 <= getattr(self, name) <= limit:
                raise UsageError(f"{name}={getattr(self, name)}: need 1 to {limit}")
        if not 0 <= self.min_probability < 1:
            raise UsageError(f"min_probability={self.min_probability}: need at least 0 and less than 1")
        if not self.min_level_probability >= 0:
            raise UsageError(f"min_level_probability={self.min_level_probability}: need 0 or more")
        if not 0 < self.certainty <= 1:
            raise UsageError(f"certainty={self.certainty}: need more than 0 and at most 1")

    @classmethod
    def chain(cls, levels: int) -> TreeShape:
        """Return the shape of a tree without branches."""
        return cls(breadth=1, levels=levels, budget=levels)

    @classmethod
    def best_first(cls, levels: int, budget: int) -> TreeShape:
        """Return the shape whose tree is the `budget` likeliest paths of all (DDTree, arXiv 2604.12989)."""
        # No node has more than `budget` children in it, and no level more than `budget` nodes. Beyond MAX_BREADTH of
        # either it is not quite that.
        return cls(breadth=min(budget, MAX_BREADTH), levels=levels, budget=budget)

    def fitted(self, levels: int, budget: int) -> TreeShape | None:
        """Cut to at most `levels` levels and `budget` nodes; None if nothing is left."""
        levels, budget = min(self.levels, levels), min(self.budget, budget)
        if levels <= 0 or budget <= 0:
            return None
        # The likeliest `budget` nodes are among the `budget` likeliest of each level: a wider draft would be the same,
        # unless min_level_probability ends it.
        return replace(self, breadth=min(self.breadth, budget), levels=levels, budget=budget)


TreePlan = TreeShape | TreeChoices
