"""Heads in step: each drafts as it would alone, together or one after another, and the best tree is sent."""

import pytest
import torch
from heads_place import begun, random_network

from outrider_drafters import Drafter, Eagle2, Eagle2Drafter, Eagle2Sizes, TargetSizes, TargetWeights, TreeShape
from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.families.lookup.family import LookupDrafter
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_drafters.routing.rules import Routing
from outrider_drafters.trees.grow import grow
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo

VOCABULARY = 23
SIZES = TargetSizes(16, 3, 4, 2, 4, VOCABULARY, 10000.0, 1e-5, 128, "llama")
SHAPE = TreeShape(3, 4, 9)
PLANS = [
    SHAPE,
    TreeShape(3, 4, 9, min_probability=0.02),
    TreeChoices.of([(0,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 1)]),
]


def frozen_target() -> TargetWeights:
    generator = torch.Generator().manual_seed(5)
    random = [torch.randn(VOCABULARY, 16, generator=generator) for _ in range(2)]
    return TargetWeights(random[0].double(), random[1].double(), SIZES, (0,))


def eagle(frozen: TargetWeights, seed: int) -> Eagle2Drafter:
    network = random_network(seed, lambda: Eagle2(Eagle2Sizes(BlockShape(16, 4, 2, 4, 20))).double())
    return Eagle2Drafter(network, frozen)  # of doubles, so that only true differences show


FROZEN = frozen_target()
EAGLES = [eagle(FROZEN, seed) for seed in (1, 2, 3)]


def rows(first: int, count: int) -> torch.Tensor:
    """The features of positions first, first + 1, ...; always the same."""
    every = torch.randn(400, 16, generator=torch.Generator().manual_seed(3))
    return every[first : first + count]


def told(heads: RoutedDrafter, text: list[int] = [3, 1, 4, 1, 5]):  # noqa: B006 # never changed
    return begun(heads, text, rows(0, len(text) - 1))


def alone(head: Drafter, plan=SHAPE):
    return grow(told(RoutedDrafter([head])), plan)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("route", ["mean-confidence", "entropy"])
def test_the_chosen_tree_is_the_one_that_head_drafts_alone(route, batched, plan):
    heads = RoutedDrafter(EAGLES, routing=Routing(route, batched=batched))
    routed = told(heads).draft(plan)
    assert routed.drafted.tree == alone(EAGLES[routed.head], plan).tree
    measures = [told(RoutedDrafter([e, e], routing=Routing(batched=False))).draft(plan).confidence for e in EAGLES]
    if route == "entropy":
        assert routed.head == min(range(3), key=lambda head: measures[head].entropy)
    else:
        assert routed.head == max(range(3), key=lambda head: measures[head].expected)
    assert routed.confidence.expected == pytest.approx(measures[routed.head].expected, abs=1e-4)
    assert (routed.num_drafts, routed.skipped) == (3, False)


def test_heads_of_one_output_run_it_once():
    together, apart = (
        told(RoutedDrafter(EAGLES, routing=Routing(batched=batched))).draft(SHAPE) for batched in (True, False)
    )
    assert (together.num_passes, apart.num_passes) == (4, 12)
    assert told(RoutedDrafter(EAGLES[:1])).draft(SHAPE).num_passes == 4
    own = eagle(frozen_target(), 1)
    for heads in (EAGLES[:1], [EAGLES[0], own], [EAGLES[0], LookupDrafter(VOCABULARY)]):
        assert not RoutedDrafter(heads).batched


@pytest.mark.parametrize("batched", [True, False])
def test_a_sure_head_spares_the_others(batched):
    sure = told(RoutedDrafter(EAGLES, routing=Routing(gate=1e-6, batched=batched))).draft(SHAPE)
    assert (sure.head, sure.num_drafts, sure.num_passes, sure.skipped) == (0, 1, 4, True)
    assert sure.drafted.tree == alone(EAGLES[0]).tree
    unsure = told(RoutedDrafter(EAGLES, routing=Routing(gate=1.0, batched=batched))).draft(SHAPE)
    assert (unsure.num_drafts, unsure.num_passes, unsure.skipped) == (3, 5 if batched else 12, False)


@pytest.mark.parametrize("batched", [True, False])
def test_spared_heads_stay_in_step(batched):
    heads = RoutedDrafter(EAGLES, routing=Routing(gate=1e-6, batched=batched))
    state = told(heads)
    for step in range(5):
        state.draft(SHAPE)
        state.rollback(state.num_tokens - 1)
        state.append([step, step + 1])
        state.add_features(state.num_features, rows(state.num_features, 1))
    text = [3, 1, 4, 1, 0, 1, 2, 3, 4, 5]
    fresh = begun(heads, text, rows(0, state.num_features))
    assert (state.num_tokens, state.num_features) == (10, 9)
    for head in range(3):
        assert state.draft(SHAPE, only=head).drafted.tree == fresh.draft(SHAPE, only=head).drafted.tree


def test_a_head_that_has_nothing_to_say_is_passed_over():
    """Lookup finds nothing, then something it is sure of."""
    lookup = LookupDrafter(VOCABULARY)
    heads = RoutedDrafter([lookup, EAGLES[0]], ["lookup", "eagle"])
    assert heads.tap == EAGLES[0].tap
    assert heads.plan is None
    fresh = told(heads, [1, 2, 3, 4])
    routed = fresh.draft(SHAPE)
    assert (routed.head, routed.num_drafts) == (1, 1)
    known = told(heads, [1, 2, 3, 9, 1, 2])
    routed = known.draft(SHAPE)
    assert (routed.head, routed.num_drafts) == (0, 2)
    assert routed.drafted.tree.tokens == (3, 9, 1, 2)
    only = told(RoutedDrafter([lookup, lookup]), [1, 2, 3])
    assert only.draft(SHAPE).drafted.tree.tokens == ()
    assert not only.switch_to_able_head()


def test_heads_share_their_features():
    class Other:
        family, vocab_size, plan = "other", VOCABULARY, None
        tap = TapInfo("other-tap", "other", 16)

        def new_state(self):
            raise NotImplementedError

    with pytest.raises(UsageError, match=r"heads a and b read different features \(last-hidden:16, other-tap\)"):
        RoutedDrafter([EAGLES[0], Other()], ["a", "b"])
    with pytest.raises(UsageError, match="at least one"):
        RoutedDrafter([])
