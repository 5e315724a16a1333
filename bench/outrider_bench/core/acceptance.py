"""Mean acceptance length by family, chain and tree, every answer checked against the target's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider_bench.core.answer_record import gather, mean_acceptance_length
from outrider_bench.core.in_process_pair import Pair
from outrider_bench.core.prompts import Question, by_family
from outrider_client.core.events import Cycle
from outrider_drafters.contracts.tree_shape import TreeShape

CHAIN = TreeShape(breadth=1, levels=4, budget=4)
TREE = TreeShape()
SHAPES = {"chain": CHAIN, "tree": TREE}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """tau by family and over all; `mismatches` counts answers that differ from the target's own (0, or a defect)."""

    by_family: dict[str, float]
    overall: float
    mismatches: int


async def acceptance(
    pair: Pair,
    shape: TreeShape,
    asked: Sequence[Question],
    expected: Sequence[tuple[int, ...]],
    step: Callable[[], None] = lambda: None,
) -> Acceptance:
    """Answer all questions with `shape`, greedily; `expected` are the target's own answers, which set the limit too.

    `step` is called after every answer.
    """
    cycles: list[tuple[Cycle, ...]] = []
    mismatches = 0
    async with pair.client() as client:
        for question, tokens in zip(asked, expected, strict=True):
            answer = await gather(client, question.prompt, shape=shape, max_new_tokens=len(tokens))
            cycles.append(answer.cycles)
            mismatches += answer.token_ids != tokens
            step()
    overall = mean_acceptance_length([cycle for some in cycles for cycle in some])
    return Acceptance(tau_by_family(asked, cycles), overall, mismatches)


def tau_by_family(asked: Sequence[Question], cycles: Sequence[Sequence[Cycle]]) -> dict[str, float]:
    """Mean acceptance length over each family's questions; cycles[i] are those of question i's answer."""
    return {
        family: mean_acceptance_length([cycle for number in numbers for cycle in cycles[number]])
        for family, numbers in by_family(asked).items()
    }
