"""Drafting from the target's known answer, with errors, at next to no cost: one machine can run many clients.

Everything else of the client is the real one.

    truth      a  b  c  d                 at every level the truth goes on with probability p, until it first does not
    drafted    a  b  x  y                 x, y: wrong tokens; accepted: 2
               |  |  '- v                 siblings, wrong too, fill the tree to its size; which node of a level
               w  u                       has children is random

With p for every level the mean acceptance length of a tree of L levels is 1 + p + p^2 + ... + p^L.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

from outrider_bench.core.oracle_drafter import OracleDrafting
from outrider_bench.load.clients.texts import LoadText
from outrider_client.drafting.drafting_thread import AheadDraft, PreDraftSpec, Ready
from outrider_drafters.contracts.drafter import Drafter, DraftState
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.routing.confidence import confidence_of
from outrider_drafters.routing.routed_drafter import RoutedDraft
from outrider_drafters.trees.grow import ScoredTree
from outrider_drafters.trees.predraft import PreDraft
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling
from outrider_proto.tree import ROOT, DraftTree

_OFFLINE_TOKEN_S = 0.005  # time to write a token offline
# Confidence stays below 1: its logarithm and the siblings' shares need a remainder.
_MIN_DOUBT = 1e-3


def probability_for(tau: float, levels: int) -> float:
    """Return the p that has this mean acceptance length. Raises UsageError where none has."""
    if not 1 <= tau <= levels + 1:
        raise UsageError(f"tau={tau}: trees of {levels} levels reach 1 to {levels + 1}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if 1 + sum(middle**level for level in range(1, levels + 1)) < tau:
            low = middle
        else:
            high = middle
    return high


class ReplayDrafter:
    """The attributes of the real drafter, so that the server sends the same features."""

    def __init__(self, drafter: Drafter) -> None:
        self.family = "replay"
        self.tap = drafter.tap
        self.vocab_size = drafter.vocab_size
        self.stale_tolerant = drafter.stale_tolerant
        self.tree_in_one_pass = True
        self.levels_per_pass = drafter.levels_per_pass
        self.plan, self.hint = drafter.plan, ""

    def new_state(self) -> DraftState:
        raise AssertionError("a replayed drafter has no states: ReplayDrafting drafts")


class ReplayDrafting(OracleDrafting):
    """The client's Drafting from the known answer.

    Every level is right with `probability`. `text` must be set before each answer.
    """

    names = ("replay",)
    can_draft_ahead = False
    current = 0

    def __init__(
        self, drafter: ReplayDrafter, probability: float, generator: random.Random, draft_s: float = 0.0
    ) -> None:
        super().__init__(drafter.tap, stale_tolerant=drafter.stale_tolerant)
        self.text = LoadText("", (), ())
        self._vocab_size = drafter.vocab_size
        self._probability = probability
        self._generator = generator
        self._draft_s = draft_s

    async def grow(self, tokens: Sequence[int], plan: TreePlan, head: int | None = None) -> RoutedDraft:
        if self._draft_s:
            await asyncio.sleep(self._draft_s)
        budget = len(plan.paths) if isinstance(plan, TreeChoices) else plan.budget
        drafted = self._drafted(self._truth(tokens, plan.levels), plan.levels, budget)
        return RoutedDraft(drafted, 0, confidence_of(drafted), 1, plan.levels, skipped=False)

    def draft_ahead(
        self, tokens: Sequence[int], tree: DraftTree, wanted: PreDraftSpec, ready: Ready | None = None
    ) -> AheadDraft:
        async def nothing(ahead_draft: AheadDraft) -> tuple[PreDraft, ...]:
            return ()

        return AheadDraft(nothing)

    async def write(self, tokens: Sequence[int], sampling: Sampling, rules: AnswerRules | None = None) -> int | None:
        await asyncio.sleep(_OFFLINE_TOKEN_S)
        truth = self._truth(tokens, 1)
        return truth[0] if truth and self._is_right() else self._wrong({*truth})

    def _truth(self, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """Return the tokens that follow in the known text; none once `tokens` differ from it."""
        whole, known = self.text.whole, len(tokens)
        return whole[known : known + count] if whole[:known] == tuple(tokens) else ()

    def _drafted(self, truth: Sequence[int], levels: int, budget: int) -> ScoredTree:
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        parent, right, score = ROOT, True, 0.0
        doubt = min(max(1 - self._probability, _MIN_DOUBT), 1 - _MIN_DOUBT)
        for level in range(min(levels, budget)):
            right = right and level < len(truth) and self._is_right()
            width = _width(level, levels, budget)
            leads_on = self._generator.randrange(width)
            first, taken = len(tokens), set(truth[level : level + 1])
            for place in range(width):
                leads = place == leads_on
                token = truth[level] if leads and right else self._wrong(taken)
                taken.add(token)
                tokens.append(token)
                parents.append(parent)
                scores.append(score + math.log((1 - doubt) if leads else doubt / width))
            parent = first + leads_on
            score = scores[parent]
        return ScoredTree(DraftTree(tuple(tokens), tuple(parents)), tuple(scores))

    def _is_right(self) -> bool:
        return self._generator.random() < self._probability

    def _wrong(self, taken: set[int]) -> int:
        """Draw a token that is not in `taken`."""
        while (token := self._generator.randrange(self._vocab_size)) in taken:
            pass
        return token


def _width(level: int, levels: int, budget: int) -> int:
    """Return the nodes of a level: the budget in even shares, the remainder to the first levels."""
    return budget // levels + (level < budget % levels) if budget >= levels else 1
