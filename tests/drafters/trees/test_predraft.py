"""Drafts for outcomes that may come true are those of a drafter that knows they have."""

from __future__ import annotations

import pytest
import torch
from heads_place import begun, paths_of

from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_drafter
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_drafters.trees.grow import grow
from outrider_drafters.trees.predraft import NO_OUTCOME, TreeOutcome, likeliest_outcomes, predraft
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.tree import ROOT, DraftTree

TEXT = [3, 41, 7, 300, 22, 9, 57, 81, 7, 300, 22, 11]
PLAN = TreeShape(breadth=3, levels=3, budget=8)
NUM_FEATURES = 9  # the newest tokens lack theirs
FAMILIES = ("moa", "moa_tli1", "eagle2", "eagle3", "dspark", "independent")


@pytest.fixture(scope="module")
def frozen():
    return TargetWeights.load(target_dir())


def state_of(drafter, tokens, num_features=NUM_FEATURES):
    rows = torch.randn(NUM_FEATURES, drafter.tap.width, generator=torch.Generator().manual_seed(5))
    return begun(drafter, tokens, rows[:num_features])


@pytest.mark.parametrize("family", FAMILIES)
def test_each_draft_is_what_a_fresh_state_would_draft_after_that_outcome(family, frozen):
    drafter = load_drafter(drafter_dir(family), frozen)
    state = state_of(drafter, TEXT)
    tree = grow(state, PLAN).tree
    foreseen = predraft(state, tree, PLAN, 6, ())
    assert len(foreseen) == 6
    paths = [*paths_of(tree), ()]  # the last one is the root's, whose number is -1
    assert [f.score for f in foreseen] == sorted((f.score for f in foreseen), reverse=True)
    for one in foreseen:
        told = grow(state_of(drafter, [*TEXT, *paths[one.outcome.node], one.outcome.bonus]), PLAN)
        assert one.drafted.tree == told.tree
        assert one.drafted.scores == pytest.approx(told.scores, abs=1e-3)


def test_heads_that_draft_in_one_batch_foresee_as_one_head_does(frozen):
    eagles = [load_drafter(drafter_dir(name), frozen) for name in ("eagle2", "eagle2_math")]
    heads = RoutedDrafter(eagles)
    assert heads.batched
    together, alone = state_of(heads, TEXT), state_of(eagles[0], TEXT)
    tree = grow(alone, PLAN).tree
    assert [f.drafted.tree for f in predraft(together, tree, PLAN, 3, ())] == [
        f.drafted.tree for f in predraft(alone, tree, PLAN, 3, ())
    ]


def test_outcomes_are_ranked_by_joint_probability_and_leave_out_children_and_ends():
    tree = DraftTree((1, 2), (ROOT, 0))
    probabilities = torch.tensor(
        [
            [0.05, 0.80, 0.05, 0.10],  # after the root: 1 is its child
            [0.10, 0.10, 0.60, 0.20],  # after node 0: 2 is its child
            [0.70, 0.10, 0.10, 0.10],  # after node 1: 0 ends the text
        ]
    )
    ranked = likeliest_outcomes(tree, probabilities.log(), 3, ends=[0])
    assert [outcome for outcome, _ in ranked] == [TreeOutcome(0, 3), TreeOutcome(ROOT, 3), TreeOutcome(0, 1)]
    assert [score for _, score in ranked] == pytest.approx(
        torch.tensor([0.8 * 0.2, 0.1, 0.8 * 0.1]).log().tolist(), abs=1e-5
    )


def test_once_the_truth_is_known_only_its_draft_grows_on(frozen):
    drafter = load_drafter(drafter_dir("moa"), frozen)
    state = state_of(drafter, TEXT)
    tree = grow(state, PLAN).tree
    all_of_them = predraft(state, tree, PLAN, 4, ())
    wanted = all_of_them[2]
    asked = iter([None, None, wanted.outcome, wanted.outcome])
    (alone,) = predraft(state, tree, PLAN, 4, (), lambda: next(asked))
    assert (alone.outcome, alone.drafted.tree) == (wanted.outcome, wanted.drafted.tree)
    asked = iter([None, None, NO_OUTCOME])
    assert predraft(state, tree, PLAN, 4, (), lambda: next(asked)) == ()
    assert predraft(state, tree, PLAN, 4, (), lambda: NO_OUTCOME) == ()
