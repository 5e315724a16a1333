"""Drafting from a tape: the drafts of a drafter with as many features, for as long as they would take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outrider_bench.core.oracle_drafter import OracleDrafting
from outrider_client.drafting.drafting_thread import AheadCost, AheadDraft, PreDraftSpec, Ready
from outrider_drafters.contracts.drafter import DraftState
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.emulation.pace import Pace
from outrider_drafters.routing.confidence import confidence_of
from outrider_drafters.routing.routed_drafter import RoutedDraft
from outrider_drafters.trees.grow import ScoredTree
from outrider_drafters.trees.predraft import PreDraft, TreeOutcome
from outrider_lab.virtual.texts import TapedText, TapedTexts
from outrider_proto.frames import Sampling
from outrider_proto.tree import ROOT, DraftTree


class TapedDrafter:
    """The attributes that the client asks of a drafter; TapedDrafting does the drafting."""

    def __init__(self, texts: TapedTexts) -> None:
        tape = texts.tape
        self.family = tape.drafter
        self.tap = tape.tap
        self.vocab_size = tape.vocabulary.size
        self.stale_tolerant = tape.stale_tolerant
        self.tree_in_one_pass = tape.tree_in_one_pass
        self.levels_per_pass, self.hint = tape.levels_per_pass, ""
        self.plan: TreePlan | None = None if tape.choices is None else TreeChoices(tape.choices)

    def new_state(self) -> DraftState:
        raise AssertionError("a tape has no states: TapedDrafting drafts")


class TapedDrafting(OracleDrafting):
    """The client's Drafting from a tape.

    Jobs run one after another, pass by pass, each pass as long as a level of Pace.
    """

    def __init__(self, texts: TapedTexts, pace: Pace) -> None:
        super().__init__(texts.tape.tap, stale_tolerant=texts.tape.stale_tolerant)
        self.names = (texts.tape.drafter,)
        self.levels_per_pass = texts.tape.levels_per_pass
        self.can_draft_ahead = texts.tape.endless
        self.current = 0
        self._texts = texts
        self._pace = pace
        self._drafter = asyncio.Lock()

    async def grow(self, tokens: Sequence[int], plan: TreePlan, head: int | None = None) -> RoutedDraft:
        async with self._drafter:
            drafts = self._texts.of(tokens).drafts(len(tokens), plan, self.num_features)
            for _ in range(self._texts.tape.num_passes(len(drafts))):
                await self._pass()
        drafted = drafts[-1] if drafts else ScoredTree()
        return RoutedDraft(drafted, 0, confidence_of(drafted), len(drafts[:1]), len(drafts), skipped=False)

    def draft_ahead(
        self, tokens: Sequence[int], tree: DraftTree, wanted: PreDraftSpec, ready: Ready | None = None
    ) -> AheadDraft:
        async def make(ahead_draft: AheadDraft) -> tuple[PreDraft, ...]:
            if ready is not None:
                await ready()
            ahead_draft.has_begun = True
            async with self._drafter:
                made = await self._predraft(tuple(tokens), tree, wanted, ahead_draft)
            ahead_draft.is_whole = bool(made) and ahead_draft.truth() is None
            return made

        return AheadDraft(make)

    async def write(self, tokens: Sequence[int], sampling: Sampling, rules: AnswerRules | None = None) -> int | None:
        async with self._drafter:
            await self._pass()
        return self._texts.of(tokens).likeliest(len(tokens))

    async def _predraft(
        self, tokens: tuple[int, ...], tree: DraftTree, wanted: PreDraftSpec, ahead_draft: AheadDraft
    ) -> tuple[PreDraft, ...]:
        """Draft ahead as `predraft` does: the tree's own nodes, the bonuses, then the drafts below them."""
        if not (tape := self._texts.tape).endless:
            return ()
        text, known = self._texts.of(tokens), self.num_features
        # Drafters that take a tree in one pass need one level, others one per depth.
        for _ in range(1 if tape.tree_in_one_pass else 1 + max(tree.depths(), default=0)):
            await self._pass(wanted.outcomes)
        if ahead_draft.truth() is not None or not (likely := text.outcomes(len(tokens), tree, wanted.outcomes, known)):
            return ()
        drafts = {outcome: _drafts_below(text, tokens, tree, outcome, wanted, known) for outcome, _ in likely}
        await self._pass(wanted.outcomes)
        levels = 1
        for _ in range(1, wanted.plan.levels):
            if (true := ahead_draft.truth()) is not None:
                likely = [pair for pair in likely if pair[0] == true]
            else:
                ahead_draft.cost = AheadCost(
                    tape.num_passes(levels) * self._pass_s(wanted.outcomes), levels, wanted.outcomes
                )
            if all(len(drafts[outcome]) <= levels for outcome, _ in likely):
                break
            if levels % tape.levels_per_pass == 0:
                await self._pass(len(likely))
            levels += 1
        return tuple(
            PreDraft(outcome, score, drafts[outcome][:levels][-1]) for outcome, score in likely if drafts[outcome]
        )

    async def _pass(self, outcomes: int = 1) -> None:
        await asyncio.sleep(self._pass_s(outcomes))

    def _pass_s(self, outcomes: int) -> float:
        return self._pace.draft_level_ms * self._pace.level_factor(outcomes) / 1e3


def _drafts_below(
    text: TapedText, tokens: tuple[int, ...], tree: DraftTree, outcome: TreeOutcome, wanted: PreDraftSpec, known: int
) -> tuple[ScoredTree, ...]:
    """Return the draft for an outcome after each of its levels."""
    depth = 0 if outcome.node == ROOT else tree.depths()[outcome.node]
    return text.drafts(len(tokens) + depth + 1, wanted.plan, known)
