"""A paced drafter: the wrapped one's every answer, later."""

import pytest
import torch
from heads_place import begun

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.emulation.pace import Pace
from outrider_drafters.emulation.paced_drafter import PacedDrafter
from outrider_drafters.families.lookup.family import LookupDrafter
from outrider_drafters.trees.grow import grow_tree
from outrider_proto.tree import DraftTree

TEXT = [5, 6, 7, 8, 9, 10, 5, 6]


class Watch:
    """Time that passes only when somebody sleeps, or `costs` for each look at it."""

    def __init__(self, costs: float = 0.0) -> None:
        self.now = 0.0
        self.costs = costs
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now += self.costs
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def paced(watch: Watch, factor=float) -> PacedDrafter:
    return PacedDrafter(LookupDrafter(20), 7.0, factor, clock=watch, sleep=watch.sleep)


def test_its_states_answer_as_the_wrapped_ones():
    plain, state = LookupDrafter(20).new_state(), paced(Watch()).new_state()
    for each in (plain, state):
        each.append([*TEXT, 7])
        each.rollback(len(TEXT))
    assert (state.num_tokens, state.num_features, state.max_levels) == (len(TEXT), 0, plain.max_levels)
    assert torch.equal(state.root_logits(), plain.root_logits())
    assert torch.equal(state.expand([7, 3], [-1, -1]), plain.expand([7, 3], [-1, -1]))
    tree = DraftTree.chain([7, 8])
    assert torch.equal(state.tree_logits(tree), plain.tree_logits(tree))


def test_every_pass_lasts_a_level():
    watch = Watch()
    state = begun(paced(watch), TEXT)
    grow_tree(state, TreeShape.chain(4))
    assert watch.slept == pytest.approx([0.007] * 4)
    state.tree_logits(DraftTree.chain([7, 8]))
    assert watch.slept == pytest.approx([0.007] * 5)


def test_the_levels_of_a_block_are_one_pass():
    watch, inner = Watch(), LookupDrafter(20)
    inner.levels_per_pass = 3
    state = begun(PacedDrafter(inner, 7.0, clock=watch, sleep=watch.sleep), TEXT)
    for levels, passes in ((1, 1), (3, 1), (4, 2)):
        watch.slept.clear()
        grow_tree(state, TreeShape.chain(levels))
        assert watch.slept == pytest.approx([0.007] * passes)
    # A block below each bonus of a tree is a pass of its own.
    watch.slept.clear()
    state.tree_logits(DraftTree.chain([7, 8]))
    for parent in (1, 2, 3):
        state.expand([9], [parent])
    assert watch.slept == pytest.approx([0.007] * 2)


@pytest.mark.parametrize(("in_one", "passes"), [(True, 1), (False, 3)])
def test_a_whole_tree_is_one_pass_or_one_a_level_as_the_drafter_has_it(in_one, passes):
    watch, inner = Watch(), LookupDrafter(20)
    inner.tree_in_one_pass = in_one
    state = begun(PacedDrafter(inner, 7.0, clock=watch, sleep=watch.sleep), TEXT)
    tree = DraftTree((7, 8, 3), (-1, 0, -1))
    plain = begun(LookupDrafter(20), TEXT)
    assert state.tree_logits(tree).shape == plain.tree_logits(tree).shape
    assert len(watch.slept) == passes


def test_only_what_is_left_is_slept():
    watch = Watch(costs=0.002)
    state = begun(paced(watch), TEXT)
    state.root_logits()
    assert watch.slept == pytest.approx([0.005])
    watch.costs = 0.010
    state.root_logits()
    assert len(watch.slept) == 1


def test_several_outcomes_at_once_cost_what_the_hardware_says():
    watch = Watch()
    drafter = paced(watch, Pace.load("paper").level_factor)
    state = begun(drafter, TEXT)
    for drafter.outcomes in (1, 8, 16):
        state.root_logits()
    assert watch.slept == pytest.approx([0.007, 0.007, 0.0091])
