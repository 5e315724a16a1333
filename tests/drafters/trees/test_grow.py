"""The dynamic tree against a plain search over the same probabilities."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from heads_place import paths_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider_drafters import TreeShape, grow_tree
from outrider_drafters.checkpoints.draft_vocabulary import DraftLogits
from outrider_drafters.contracts.drafter import UNLIMITED
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.trees.grow import grow, start_tree
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT


class Lookup:
    """A state whose logits are a function of the path alone; notes how often it is asked."""

    num_tokens = num_features = 1

    max_levels = UNLIMITED

    def __init__(self, vocabulary: int, seed: int, sure: bool = False) -> None:
        self.vocabulary, self.seed, self.sure = vocabulary, seed, sure
        self.rows: list[tuple[int, ...]] = []
        self.num_levels = 0

    def logits(self, path: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, *path)) % 2**63)
        logits = torch.randn(self.vocabulary, generator=generator) * 2
        if self.sure:
            logits[int(logits.argmax())] = 1000.0
        return logits

    def root_logits(self) -> Tensor:
        self.rows = []
        return self.logits(())

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        self.num_levels += 1
        paths = [
            ((*self.rows[parent], token) if parent != ROOT else (token,))
            for token, parent in zip(tokens, parents, strict=True)
        ]
        self.rows += paths
        return torch.stack([self.logits(path) for path in paths])

    def append(self, tokens: Sequence[int]) -> None: ...
    def add_features(self, first: int, rows: Tensor) -> None: ...
    def rollback(self, num_tokens: int) -> None: ...


class Restricted(Lookup):
    """One with a draft vocabulary. `columns`: its logits carry those of the vocabulary's tokens."""

    tokens = torch.tensor([2, 5, 6, 11, 17, 23, 24, 39])

    def __init__(self, seed: int, columns: bool) -> None:
        super().__init__(40, seed)
        self.columns = columns

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        logits = DraftLogits.of(super().expand(tokens, parents)[:, self.tokens], self.tokens, self.vocabulary)
        return logits if self.columns else logits.clone()


def plain_tree(state: Lookup, shape: TreeShape) -> list[tuple[int, ...]]:
    """The paths of the tree's nodes, in order, by the rule's words."""
    offers: list[tuple[tuple[int, ...], float]] = []
    frontier: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(shape.levels):
        fresh = []
        for path, score in frontier:
            scores = state.logits(path).log_softmax(-1)
            best = scores.topk(min(shape.breadth, state.vocabulary))
            fresh += [((*path, t), score + s) for t, s in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        offers += fresh
        frontier = sorted(fresh, key=lambda node: -node[1])[: shape.breadth]
    ranked = sorted(range(len(offers)), key=lambda i: -offers[i][1])[: shape.budget]
    return [offers[i][0] for i in sorted(ranked)]


@settings(max_examples=80)
@given(
    vocabulary=st.integers(2, 12),
    seed=st.integers(0, 1000),
    shape=st.builds(TreeShape, st.integers(1, 5), st.integers(1, 5), st.integers(1, 40)),
)
def test_is_the_tree_of_the_rule(vocabulary, seed, shape):
    state = Lookup(vocabulary, seed)
    tree = grow_tree(state, shape)
    assert paths_of(tree) == plain_tree(state, shape)
    if shape.breadth < shape.budget:
        assert state.num_levels == shape.levels - 1
    else:
        assert max(tree.depths()) - 1 <= state.num_levels <= shape.levels - 1


def test_what_cannot_be_kept_is_not_expanded():
    """With as many nodes a level as in the tree it is the best of all, and ends where all that is left is worse."""
    state, shape = Lookup(12, 3), TreeShape.best_first(levels=9, budget=6)
    tree = grow_tree(state, shape)
    assert paths_of(tree) == plain_tree(state, shape)
    assert state.num_levels < 8
    assert len(state.rows) <= 6


@pytest.mark.parametrize("entropies", [False, True])
def test_a_row_for_all_nodes_of_a_level_is_worked_on_once(entropies):
    """A block's levels: the tree is that of the same rows written out."""
    rows = torch.randn(4, 12, generator=torch.Generator().manual_seed(5)) * 2
    trees = [start_tree(rows[0], TreeShape.best_first(4, 10), entropies) for _ in range(2)]
    for row in rows[1:]:
        for tree, written_out in zip(trees, (False, True), strict=True):
            level = tree.level()
            assert level is not None
            shared = row[None].expand(len(level.tokens), -1)
            tree.take(shared.clone() if written_out else shared)
    assert trees[0].drafted() == trees[1].drafted()


def test_sure_children_never_push_out_their_parents():
    """A child of probability 1 ties with its parent: exactly, in float32."""
    tree = grow_tree(Lookup(8, 2, sure=True), TreeShape(breadth=4, levels=5, budget=5))
    assert len(tree) == 5
    assert max(tree.depths()) == 5


def test_certainty_stands_for_a_probability_of_one_alone():
    """Nodes are chosen with it; scores stay the drafter's own."""
    shape = TreeShape(breadth=1, levels=6, budget=6, min_probability=0.2)
    sure = grow(Lookup(8, 2, sure=True), replace(shape, certainty=0.6))
    assert sure.scores == (0.0,) * 3  # .6, .36, .216
    assert grow(Lookup(8, 2, sure=True), shape).scores == (0.0,) * 6
    assert grow(Lookup(50, 1), replace(shape, certainty=0.6)) == grow(Lookup(50, 1), shape)


def test_cancelled_tree_keeps_the_levels_there_are():
    state = Lookup(30, 3)
    tree = grow_tree(state, TreeShape(3, 6, 40), cancelled=lambda: state.num_levels == 2)
    assert max(tree.depths()) == 3
    assert paths_of(tree) == plain_tree(Lookup(30, 3), TreeShape(3, 3, 40))


def test_no_level_is_expanded_whose_nodes_are_together_too_unlikely():
    whole, state = grow(Lookup(50, 1), TreeShape(2, 6, 16)), Lookup(50, 1)
    # Of each level the nodes that the next one expands.
    frontier = [
        sum(math.exp(s) for s, d in zip(whole.scores, whole.tree.depths(), strict=True) if d == n) for n in (1, 2)
    ]
    assert frontier[0] > frontier[1] * 1.01
    cut = grow(state, TreeShape(2, 6, 16, min_level_probability=(frontier[0] + frontier[1]) / 2))
    assert state.num_levels == 1
    assert max(cut.tree.depths()) == 2


@pytest.mark.parametrize("levels_per_pass", [1, 2, 3])
def test_only_a_level_that_costs_a_pass_can_be_too_unlikely(levels_per_pass):
    state = Lookup(50, 1)
    shape = TreeShape(2, 6, 16, min_level_probability=1e9, levels_per_pass=levels_per_pass)
    assert max(grow(state, shape).tree.depths()) == levels_per_pass
    assert state.num_levels == levels_per_pass - 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"breadth": 0}, "breadth=0: need 1 to 64"),
        ({"levels": 0}, "levels=0: need 1 to 64"),
        ({"budget": 256}, "budget=256: need 1 to 255"),
        ({"certainty": 0.0}, "certainty=0.0: need more than 0 and at most 1"),
    ],
)
def test_shapes_out_of_range_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        TreeShape(**arguments)


@pytest.mark.parametrize("plan", [TreeShape(3, 4, 9), TreeChoices.of([(0,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 1)])])
def test_scores_and_entropies_are_those_of_the_paths(plan: TreePlan):
    state = Lookup(11, seed=5)
    builder = start_tree(state.root_logits(), plan, entropies=True)
    while (level := builder.level()) is not None and plan.levels - 1 > state.num_levels:
        builder.take(state.expand(level.tokens, level.parents))
    drafted = builder.drafted()
    assert drafted.tree == grow_tree(state, plan) == grow(state, plan).tree
    assert drafted.entropies is not None
    paths = paths_of(drafted.tree)
    for path, score, entropy in zip(paths, drafted.scores, drafted.entropies, strict=True):
        steps = [state.logits(path[:i]).double().log_softmax(-1) for i in range(len(path))]
        assert score == pytest.approx(sum(float(s[t]) for s, t in zip(steps, path, strict=True)), abs=1e-4)
        assert entropy == pytest.approx(-float((steps[-1].exp() * steps[-1]).sum()), abs=1e-4)
    assert grow(state, plan).entropies is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("plan", [TreeShape(3, 4, 16), TreeShape(12, 3, 40), TreeChoices.load("mc_sim_7b_63")])
def test_columns_of_a_draft_vocabulary_make_the_tree_of_all_columns(plan, seed):
    short, plain = (Restricted(seed, columns) for columns in (True, False))
    assert type(plain.expand([1], [ROOT])) is Tensor
    assert isinstance(short.expand([1], [ROOT]), DraftLogits)
    trees = [grow(state, plan) for state in (short, plain)]
    assert trees[0].tree == trees[1].tree
    assert trees[0].scores == pytest.approx(trees[1].scores, abs=1e-5)
