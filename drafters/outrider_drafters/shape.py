"""How large a draft tree may grow."""

from __future__ import annotations

from dataclasses import dataclass

from outrider_proto.errors import UsageError
from outrider_proto.tree import MAX_NODES

MAX_BREADTH = 64
MAX_LEVELS = 64


@dataclass(frozen=True, slots=True)
class TreeShape:
    """`breadth` nodes are expanded a level, `levels` levels drafted, the best `budget` nodes kept (root not counted).

    EAGLE's total_token/depth/top_k T/D/k is breadth k, levels D + 1, budget T - 1. Raises UsageError.
    """

    breadth: int = 4
    levels: int = 5
    budget: int = 16

    def __post_init__(self) -> None:
        for name, limit in (("breadth", MAX_BREADTH), ("levels", MAX_LEVELS), ("budget", MAX_NODES)):
            if not 1 <= getattr(self, name) <= limit:
                raise UsageError(f"{name}={getattr(self, name)}: need 1 to {limit}")

    @classmethod
    def chain(cls, levels: int) -> TreeShape:
        """A tree without branches."""
        return cls(breadth=1, levels=levels, budget=levels)
