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
from outrider_drafters.contracts.drafter import UNLIMITED
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.predraft import TreeOutcome
from outrider_proto.tree import ROOT, DraftTree

from ..conftest import VOCAB, WIDTH, FakeDrafter, FakeDraftState

TEXT = (1, 2, 3)
TREE = DraftTree.chain((4, 5))
LEVELS = 4
WANTED = PreDraftSpec(TreeShape(1, LEVELS, LEVELS), outcomes=3, ends=(0,))
LIKELIEST = TreeOutcome(1, 6)  # both are right, and so is the bonus
SECOND = TreeOutcome(0, 7)
IN_TIME_S = 5.0  # nothing here takes longer, unless it waits for ever


@dataclass
class Gated(FakeDrafter):
    """A drafter that counts up: after token t comes t + 1, or else t + 3. Each pass waits for a permit."""

    language: None = None
    stale_tolerant: bool = True
    max_levels: int = UNLIMITED
    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    passes: list[tuple[int, ...]] = field(default_factory=list)  # the tokens of each
    begun: threading.Event = field(default_factory=threading.Event)
    fault: Exception | None = None
    states: list[GatedState] = field(default_factory=list)

    def new_state(self) -> GatedState:
        self.states.append(GatedState(self))
        return self.states[-1]

    def permit(self, passes: int) -> None:
        for _ in range(passes):
            self.permits.release()

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


class GatedState(FakeDraftState):
    def __init__(self, drafter: Gated) -> None:
        super().__init__(drafter.language)
        self._drafter = drafter
        self.max_levels = drafter.max_levels

    def add_features(self, first: int, rows: torch.Tensor) -> None:
        self.num_features = max(self.num_features, first + len(rows))

    def root_logits(self) -> torch.Tensor:
        return self._drafter.run(self.tokens[-1:])[0]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        return self._drafter.run(tokens)


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


async def test_it_computes_with_as_many_threads_as_who_made_it(drafter):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    await asyncio.to_thread(torch.set_num_threads, 1)  # as an engine beside it does for a pass
    thread = DraftingThread(drafter)
    assert await thread._worker.run(torch.get_num_threads) == 2
    await thread.close()
    torch.set_num_threads(before)


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


@pytest.mark.parametrize("permits", [0, OF_TREE + 1], ids=["amid the tree", "amid the drafts"])
async def test_given_up_it_frees_the_thread_within_a_level(drafter, drafting, permits):
    """Its tree is all that it costs where no draft has begun."""
    ahead_draft = drafting.draft_ahead(TEXT, TREE, WANTED)
    drafter.permit(permits)
    await reached(drafter, permits)
    await asyncio.to_thread(drafter.begun.wait)
    assert not ahead_draft.task.done()
    assert permits or ahead_draft.num_nodes == 0  # nothing is there before it is made
    ahead_draft.cancel()
    await asyncio.wait({ahead_draft.task}, timeout=IN_TIME_S)
    assert (ahead_draft.task.cancelled(), ahead_draft.num_nodes) == (True, 0)
    drafter.permit(100)
    await asyncio.wait_for(drafting.follow(TEXT), IN_TIME_S)  # its turn comes when the ahead draft is over
    assert len(drafter.passes) <= max(OF_TREE, permits + 1)


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


async def test_what_it_assumed_is_taken_back(drafter, drafting):
    """The next job sees its own text, whatever text the ahead draft was for, and none of the features that it knew."""
    drafter.permit(1000)
    drafting.add_features(0, np.zeros((2, WIDTH), dtype=np.float32))
    assumed = drafting.draft_ahead((*TEXT, 4, 5, 6), TREE, WANTED)
    await asyncio.wait_for(assumed.task, IN_TIME_S)
    routed = await asyncio.wait_for(drafting.grow((*TEXT, 9), WANTED.plan), IN_TIME_S)
    assert routed.drafted.tree == DraftTree.chain((10, 11, 12, 13))
    assert drafter.states[0].tokens == [*TEXT, 9]
    assert drafter.states[0].num_features == drafting.num_features == 2
