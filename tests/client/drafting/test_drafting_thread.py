"""Drafting for what a verdict may say: narrowed to what it said, given up when nobody needs it, late when rows are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from outrider_client.drafting.drafting_thread import AheadDraft, DraftingThread, PreDraftSpec
from outrider_drafters.contracts.drafter import UNLIMITED, tree_logits_by_level
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.predraft import NO_OUTCOME, TreeOutcome
from outrider_proto.frames import TapInfo
from outrider_proto.tree import ROOT, DraftTree

VOCAB = 32
TEXT = (1, 2, 3)
TREE = DraftTree.chain((4, 5))
LEVELS = 4
WANTED = PreDraftSpec(TreeShape(1, LEVELS, LEVELS), outcomes=3, ends=(0,))
LIKELIEST = TreeOutcome(1, 6)  # both are right, and so is the bonus
SECOND = TreeOutcome(0, 7)
IN_TIME_S = 5.0  # nothing here takes longer, unless it waits for ever


@dataclass
class Gated:
    """A drafter that counts up: after token t comes t + 1, or else t + 3. Each pass waits for a permit."""

    tap: TapInfo = field(default_factory=lambda: TapInfo("tap", "fake", 2))
    max_levels: int = UNLIMITED
    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    passes: list[tuple[int, ...]] = field(default_factory=list)  # the tokens of each
    begun: threading.Event = field(default_factory=threading.Event)
    fault: Exception | None = None
    states: list[GatedState] = field(default_factory=list)
    family: str = "gated"
    vocab_size: int = VOCAB
    plan: None = None
    stale_tolerant: bool = True
    tree_in_one_pass: bool = False
    levels_per_pass: int = 1

    def new_state(self) -> GatedState:
        self.states.append(GatedState(self))
        return self.states[-1]

    def permit(self, passes: int) -> None:
        self.permits.release(passes)

    def run(self, tokens: Sequence[int]) -> torch.Tensor:
        self.begun.set()
        self.permits.acquire()
        if self.fault is not None:
            raise self.fault
        self.passes.append(tuple(tokens))
        logits = torch.zeros(len(tokens), VOCAB)
        for row, token in enumerate(tokens):
            logits[row, (token + 1) % VOCAB] = 12.0
            logits[row, (token + 3) % VOCAB] = 10.0
        return logits


class GatedState:
    def __init__(self, drafter: Gated) -> None:
        self._drafter = drafter
        self.tokens: list[int] = []
        self.num_features = 0
        self.max_levels = drafter.max_levels

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def add_features(self, first: int, rows: torch.Tensor) -> None:
        self.num_features = max(self.num_features, first + len(rows))

    def rollback(self, num_tokens: int) -> None:
        del self.tokens[num_tokens:]
        self.num_features = min(self.num_features, num_tokens)

    def root_logits(self) -> torch.Tensor:
        return self._drafter.run(self.tokens[-1:])[0]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        return self._drafter.run(tokens)

    def tree_logits(self, tree: DraftTree) -> torch.Tensor:
        return tree_logits_by_level(tree, self.root_logits(), self.expand)


OF_TREE = 3  # passes: the root and two levels
OF_DRAFTS = LEVELS  # the bonuses, and the levels below them but the last
ALL = OF_TREE + OF_DRAFTS


@pytest.fixture
def drafter():
    return Gated()


@pytest.fixture
async def drafting(drafter):
    thread = DraftingThread(drafter)
    yield thread
    drafter.permit(1000)
    await thread.close()


async def reached(drafter: Gated, num_passes: int) -> None:
    """Wait until so many passes have been made."""
    async with asyncio.timeout(IN_TIME_S):
        while len(drafter.passes) < num_passes:  # noqa: ASYNC110  # the drafter's thread knows no loop
            await asyncio.sleep(0)


async def drafted_for(ahead_draft: AheadDraft, outcome: TreeOutcome):
    async with asyncio.timeout(IN_TIME_S):
        return await ahead_draft.draft_for(outcome)


async def test_drafts_for_the_likeliest_outcomes(drafter, drafting):
    drafter.permit(ALL)
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED)
    made = await asyncio.wait_for(ahead_draft.task, IN_TIME_S)
    assert [one.outcome for one in made][:1] == [LIKELIEST]
    assert SECOND in [one.outcome for one in made]
    assert made[0].drafted.tree == DraftTree.chain((7, 8, 9, 10))
    assert ahead_draft.num_nodes == 3 * LEVELS
    assert len(drafter.passes) == ALL
    assert len(drafter.passes[-1]) == WANTED.outcomes  # side by side
    assert (await drafted_for(ahead_draft, LIKELIEST)).tree == DraftTree.chain((7, 8, 9, 10))
    assert (await drafted_for(ahead_draft, SECOND)).tree == DraftTree.chain((8, 9, 10, 11))
    assert await drafted_for(ahead_draft, TreeOutcome(ROOT, 20)) is None


async def test_nothing_is_there_before_it_is_made(drafter, drafting):
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED)
    await asyncio.to_thread(drafter.begun.wait)
    assert ahead_draft.num_nodes == 0
    assert not ahead_draft.task.done()
    ahead_draft.cancel()


@pytest.mark.parametrize("outcome", [LIKELIEST, SECOND])
async def test_narrows_to_what_the_verdict_said(drafter, drafting, outcome):
    """The one draft that is needed grows on, to its full depth, and nothing beside it."""
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED)
    drafter.permit(OF_TREE + 2)
    await reached(drafter, OF_TREE + 2)
    ahead_draft.resolve(outcome)
    drafter.permit(100)
    drafted = await drafted_for(ahead_draft, outcome)
    assert drafted.tree == DraftTree.chain(tuple(range(outcome.bonus + 1, outcome.bonus + 1 + LEVELS)))
    assert [len(tokens) for tokens in drafter.passes[OF_TREE:]][:2] == [3, 3]
    assert [len(tokens) for tokens in drafter.passes[OF_TREE + 3 :]] == [1] * (OF_DRAFTS - 3)
    assert ahead_draft.num_nodes == LEVELS


async def test_an_unexpected_outcome_ends_it_within_a_level(drafter, drafting):
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED)
    drafter.permit(OF_TREE + 1)
    await reached(drafter, OF_TREE + 1)
    resolved = asyncio.create_task(drafted_for(ahead_draft, TreeOutcome(ROOT, 20)))
    await asyncio.sleep(0)
    drafter.permit(100)
    assert await resolved is None
    assert len(drafter.passes) <= OF_TREE + 2


async def test_given_up_it_frees_the_thread_within_a_level(drafter, drafting):
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED)
    drafter.permit(OF_TREE + 1)
    await reached(drafter, OF_TREE + 1)
    ahead_draft.cancel()
    await asyncio.wait({ahead_draft.task}, timeout=IN_TIME_S)
    assert ahead_draft.task.cancelled()
    assert ahead_draft.num_nodes == 0
    drafter.permit(100)
    await asyncio.wait_for(drafting.follow(TEXT), IN_TIME_S)  # its turn comes when the ahead draft is over
    assert len(drafter.passes) <= OF_TREE + 2


async def test_given_up_before_its_turn_it_costs_no_pass(drafter, drafting):
    """Guessing never delays real work."""
    first = drafting.draft_ahead(TEXT, TREE, WANTED)
    await asyncio.to_thread(drafter.begun.wait)
    second = drafting.draft_ahead((*TEXT, 4, 5, 6), TREE, WANTED)
    await asyncio.sleep(0)
    second.cancel()
    drafter.permit(ALL)
    await asyncio.wait_for(first.task, IN_TIME_S)
    drafter.permit(100)
    await asyncio.wait_for(drafting.follow(TEXT), IN_TIME_S)
    assert len(drafter.passes) == ALL


async def test_given_up_amid_the_tree_it_costs_no_draft(drafter, drafting):
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED)
    await asyncio.to_thread(drafter.begun.wait)
    ahead_draft.cancel()
    drafter.permit(100)
    await asyncio.wait_for(drafting.follow(TEXT), IN_TIME_S)
    assert len(drafter.passes) <= OF_TREE


async def test_begins_when_it_is_ready(drafter, drafting):
    """Drafting uses the rows that have arrived by then."""
    ready = asyncio.Event()
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED, ready.wait)
    drafter.permit(ALL)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not drafter.begun.is_set()
    drafting.add_features(0, np.zeros((2, 2), dtype=np.float32))
    ready.set()
    assert (await asyncio.wait_for(ahead_draft.task, IN_TIME_S))[0].outcome == LIKELIEST
    assert drafter.states[0].num_features == 2


@pytest.mark.parametrize("outcome", [LIKELIEST, TreeOutcome(ROOT, 20)])
async def test_a_verdict_that_overtakes_the_rows_blocks_nothing(drafter, drafting, outcome):
    """The task that receives the rows waits for this draft, so the draft must not wait for the rows."""
    never = asyncio.Event()
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED, never.wait)
    await asyncio.sleep(0)
    assert await drafted_for(ahead_draft, outcome) is None
    assert ahead_draft.task.cancelled()
    assert ahead_draft.num_nodes == 0
    assert ahead_draft.rank_of(outcome) is None
    assert not drafter.begun.is_set()


async def test_known_at_once_it_does_not_begin(drafter, drafting):
    """Nor is it left behind that the rows were never waited for."""
    ready = asyncio.Event()
    ready.set()
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED, ready.wait)
    await asyncio.sleep(0)
    ahead_draft.resolve(NO_OUTCOME)
    drafter.permit(100)
    assert await drafted_for(ahead_draft, NO_OUTCOME) is None


@pytest.mark.parametrize("reach", [0, 2])
async def test_a_drafter_that_needs_features_looks_out_for_nothing(reach):
    drafter = Gated(max_levels=reach)
    drafting = DraftingThread(drafter)
    assert not drafting.can_draft_ahead
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED)
    assert await asyncio.wait_for(ahead_draft.task, IN_TIME_S) == ()
    assert await drafted_for(ahead_draft, LIKELIEST) is None
    assert not drafter.passes
    await drafting.close()


async def test_ends_need_no_draft(drafter, drafting):
    drafter.permit(100)
    ahead_draft = drafting.draft_ahead(TEXT, TREE, PreDraftSpec(WANTED.plan, 3, ends=(LIKELIEST.bonus,)))
    made = await asyncio.wait_for(ahead_draft.task, IN_TIME_S)
    assert LIKELIEST not in [one.outcome for one in made]


async def test_errors_reach_the_caller_of_the_draft(drafter, drafting):
    drafter.fault = RuntimeError("broken")
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED)
    await asyncio.to_thread(drafter.begun.wait)
    drafter.permit(1)
    with pytest.raises(RuntimeError, match="broken"):
        await drafted_for(ahead_draft, LIKELIEST)
    drafter.fault = None
    drafter.permit(100)
    await asyncio.wait_for(drafting.follow(TEXT), IN_TIME_S)


async def test_what_it_assumed_is_taken_back(drafter, drafting):
    """The next job sees its own text, whatever text the ahead draft was for, and none of the features that it knew."""
    drafter.permit(1000)
    drafting.add_features(0, np.zeros((2, 2), dtype=np.float32))
    assumed = drafting.draft_ahead((*TEXT, 4, 5, 6), TREE, WANTED)
    await asyncio.wait_for(assumed.task, IN_TIME_S)
    routed = await asyncio.wait_for(drafting.grow((*TEXT, 9), WANTED.plan), IN_TIME_S)
    assert routed.drafted.tree == DraftTree.chain((10, 11, 12, 13))
    assert drafter.states[0].tokens == [*TEXT, 9]
    assert drafter.states[0].num_features == drafting.num_features == 2


async def test_what_a_level_costs_is_known_of_those_for_all_outcomes(drafter, drafting):
    drafter.permit(ALL)
    whole = drafting.draft_ahead(TEXT, TREE, WANTED)
    await asyncio.wait_for(whole.task, IN_TIME_S)
    assert (whole.cost.levels, whole.cost.outcomes, whole.is_whole) == (WANTED.plan.levels - 1, WANTED.outcomes, True)
    assert (whole.rank_of(LIKELIEST), whole.rank_of(TreeOutcome(ROOT, 20))) == (0, None)
    narrowed = drafting.draft_ahead(TEXT, TREE, WANTED)
    drafter.permit(OF_TREE)
    await reached(drafter, ALL + OF_TREE)
    narrowed.resolve(LIKELIEST)  # before there is a level for anything
    drafter.permit(100)
    await drafted_for(narrowed, LIKELIEST)
    assert narrowed.cost is None
    assert not narrowed.is_whole


async def test_an_ahead_draft_cut_short_reports_the_cost_of_its_levels(drafter, drafting):
    """A batch too large for its drafter is always cut short, and is to be found out all the same."""
    drafter.permit(OF_TREE + 1)
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED)
    await reached(drafter, OF_TREE + 1)
    drafter.permit(1)
    await reached(drafter, OF_TREE + 2)
    ahead_draft.resolve(LIKELIEST)
    drafter.permit(100)
    await drafted_for(ahead_draft, LIKELIEST)
    assert ahead_draft.cost.outcomes == WANTED.outcomes
    assert ahead_draft.cost.levels >= 1
    assert not ahead_draft.is_whole
