"""Mean acceptance lengths and acceptance by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from outrider_bench.core.answer_record import mean_acceptance_length
from outrider_bench.core.bootstrap import Interval, ratio_interval
from outrider_bench.core.prompts import ALL as ALL
from outrider_bench.core.prompts import Question, by_family, by_group
from outrider_client.core.events import Cycle
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.frames import Draft

CHAIN = TreeShape(breadth=1, levels=4, budget=4)
TREE = TreeShape()
SHAPES = {"chain": CHAIN, "tree": TREE}


@dataclass(frozen=True, slots=True)
class TauByText:
    """Mean acceptance length by family, over all, and of easy and hard text; the same prompts give the same.

    `ci95` by family, group and ALL are intervals over the choice of prompts. `judged` and `verdicts` are each prompt's
    tokens of verdicts on drafts, bonus included, and their number.
    """

    by_family: dict[str, float]
    overall: float
    by_group: dict[str, float]
    ci95: dict[str, Interval | None]
    judged: tuple[int, ...]
    verdicts: tuple[int, ...]

    @classmethod
    def of(cls, asked: Sequence[Question], cycles: Sequence[Sequence[Cycle]]) -> TauByText:
        """Count; `cycles[i]` belong to question i."""
        families, groups = by_family(asked), by_group(asked)
        # Tau times its number of cycles: the tokens.
        counts = [(round(mean_acceptance_length(some) * len(some)), len(some)) for some in cycles]
        tau, intervals = {}, {}
        for name, numbers in (families | groups | {ALL: list(range(len(asked)))}).items():
            tokens, verdicts = zip(*(counts[number] for number in numbers), strict=True)
            tau[name] = sum(tokens) / sum(verdicts) if any(verdicts) else 0.0
            intervals[name] = ratio_interval(tokens, verdicts)
        return cls(
            {name: tau[name] for name in families},
            tau[ALL],
            {name: tau[name] for name in groups},
            intervals,
            tuple(tokens for tokens, _ in counts),
            tuple(verdicts for _, verdicts in counts),
        )

    @property
    def figures(self) -> dict[str, float]:
        """All of them by the names that `ci95` has."""
        return {**self.by_family, **self.by_group, ALL: self.overall}


@dataclass(frozen=True, slots=True)
class PositionAcceptance:
    """Acceptance by position in the draft.

    `reached[d]` is the share of the verdicts on trees that accepted at least d + 1 drafted tokens, `kept[d]` their
    share of those that accepted d; `rate` is accepted over drafted tokens.
    """

    reached: tuple[float, ...]
    kept: tuple[float, ...]
    rate: float


def acceptance_by_position(cycles: Sequence[Cycle]) -> PositionAcceptance:
    """Count the cycles that sent a draft tree; without any, the shares are empty."""
    drafts = [(cycle.request.tree, len(cycle.verdict.path)) for cycle in cycles if isinstance(cycle.request, Draft)]
    levels = max((max(tree.depths(), default=0) for tree, _ in drafts), default=0)
    at_least = [sum(1 for _, accepted in drafts if accepted >= depth) for depth in range(levels + 1)]
    drafted = sum(len(tree) for tree, _ in drafts)
    # Without drafts `at_least` has one entry, and nothing is divided by their number.
    return PositionAcceptance(
        reached=tuple(count / len(drafts) for count in at_least[1:]),
        kept=tuple(count / before if before else 0.0 for before, count in pairwise(at_least)),
        rate=sum(accepted for _, accepted in drafts) / drafted if drafted else 0.0,
    )
