"""Heads in step: each drafts as it would alone, together or one after another, and the best tree is sent."""

import pytest
import torch
from heads_place import begun
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_drafters import Drafter, Eagle2, Eagle2Drafter, Eagle2Sizes, TargetSizes, TargetWeights, TreeShape
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.families.lookup.drafter import LookupDrafter
from outrider_drafters.routing.batched_heads import BatchedHeadsState, batch_heads
from outrider_drafters.routing.head_states import HeadStates, SeparateStates
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_drafters.routing.rules import Routing
from outrider_drafters.trees.grow import Level, grow
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo
from outrider_proto.tree import ROOT

VOCABULARY = 23
SIZES = TargetSizes(16, 3, 4, 2, 4, VOCABULARY, 10000.0, 1e-5, 128, "llama")
EAGLE = Eagle2Sizes(16, 4, 2, 4, 20)
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


def eagle(frozen: TargetWeights, seed: int, sizes: Eagle2Sizes = EAGLE) -> Eagle2Drafter:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Eagle2(sizes).double()  # so that only true differences show
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
            parameter.requires_grad_(False)
    return Eagle2Drafter(network, frozen)


FROZEN = frozen_target()
EAGLES = [eagle(FROZEN, seed) for seed in (1, 2, 3)]


def rows(first: int, count: int) -> torch.Tensor:
    """The features of positions first, first + 1, ...; always the same."""
    every = torch.randn(400, 16, generator=torch.Generator().manual_seed(3))
    return every[first : first + count]


def together(heads: list[Eagle2Drafter]) -> BatchedHeadsState:
    stack = batch_heads(heads)
    assert stack is not None
    return stack.new_state()


tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4)
appends = st.tuples(st.just("append"), tokens)
features = st.tuples(st.just("features"), st.integers(0, 6), st.integers(0, 12))
rollbacks = st.tuples(st.just("rollback"), st.integers(0, 8))
drafts = st.tuples(st.just("draft"), st.sets(st.integers(0, 2), min_size=1))
scripts = st.lists(st.one_of(appends, features, rollbacks, drafts), max_size=24)


def play(states: HeadStates, script: list) -> list[int]:
    """Returns the tokens that stand."""
    told: list[int] = []
    for name, *arguments in script:
        match name:
            case "append":
                states.append(arguments[0])
                told += arguments[0]
            case "features":
                first = max(0, states.num_features - arguments[0])
                more = min(arguments[1], len(told) - states.num_features)
                states.add_features(first, rows(first, states.num_features - first + more))
            case "rollback":
                keep = max(0, len(told) - arguments[0])
                states.rollback(keep)
                del told[keep:]
            case "draft":
                if told:
                    answers(states, sorted(arguments[0]))
    return told


def answers(states: HeadStates, heads: list[int]) -> list[torch.Tensor]:
    """Logits of some heads: at the root, then of levels of unequal size, then of one head's alone."""
    states.start()
    made = [states.root(head) for head in heads]
    first = {head: Level([2, 5, 1][: 1 + head % 3], [ROOT] * (1 + head % 3)) for head in heads}
    made += states.expand(first).values()
    made += states.expand({head: Level([7, 1], [head % 3, 0]) for head in heads}).values()
    made += states.expand({heads[-1]: Level([4], [1 + heads[-1] % 3])}).values()
    return made


def assert_equal(ours: list[torch.Tensor], plain: list[torch.Tensor]) -> None:
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@settings(max_examples=100)
@given(script=scripts)
def test_one_batch_equals_one_after_another(script):
    ours, plain = together(EAGLES), SeparateStates(EAGLES)
    told = play(ours, script)
    assert play(plain, script) == told
    assert (
        (ours.num_tokens, ours.num_features) == (plain.num_tokens, plain.num_features) == (len(told), ours.num_features)
    )
    if told:
        assert_equal(answers(ours, [0, 1, 2]), answers(plain, [0, 1, 2]))


def test_stacks_with_every_part():
    """Biases everywhere, and a middle head that is not asked with the others."""
    frozen = frozen_target()
    sizes = Eagle2Sizes(16, 4, 2, 4, 20, fc_bias=False, qkv_bias=True)
    heads = [eagle(frozen, seed, sizes) for seed in (4, 5, 6)]
    ours, plain = together(heads), SeparateStates(heads)
    for states in (ours, plain):
        states.append([1, 2, 3, 4])
        states.add_features(0, rows(0, 2))
    assert_equal(answers(ours, [0, 2]), answers(plain, [0, 2]))


def test_unlike_heads_do_not_stack():
    wider = eagle(FROZEN, 1, Eagle2Sizes(16, 4, 2, 4, 24))
    without_bias = eagle(FROZEN, 1, Eagle2Sizes(16, 4, 2, 4, 20, fc_bias=False))
    elsewhere = eagle(frozen_target(), 1)
    own_words = Eagle2Drafter(Eagle2(EAGLE), FROZEN, torch.zeros(VOCABULARY, 16))
    deeper = [eagle(FROZEN, seed, Eagle2Sizes(16, 4, 2, 4, 20, layers=2)) for seed in (1, 2)]
    assert batch_heads(deeper) is None
    for other in (wider, without_bias, elsewhere, own_words, deeper[0], LookupDrafter(VOCABULARY)):
        assert batch_heads([EAGLES[0], other]) is None
        assert not RoutedDrafter([EAGLES[0], other]).batched
    assert RoutedDrafter(EAGLES).batched
    assert not RoutedDrafter(EAGLES, routing=Routing(batched=False)).batched
    assert not RoutedDrafter(EAGLES, routing=Routing("keywords")).batched


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


def test_a_batch_is_one_pass():
    together, apart = (
        told(RoutedDrafter(EAGLES, routing=Routing(batched=batched))).draft(SHAPE) for batched in (True, False)
    )
    assert (together.num_passes, apart.num_passes) == (4, 12)
    assert told(RoutedDrafter(EAGLES[:1])).draft(SHAPE).num_passes == 4


@pytest.mark.parametrize("batched", [True, False])
def test_a_sure_head_spares_the_others(batched):
    sure = told(RoutedDrafter(EAGLES, routing=Routing(gate=1e-6, batched=batched))).draft(SHAPE)
    assert (sure.head, sure.num_drafts, sure.num_passes, sure.skipped) == (0, 1, 4, True)
    assert sure.drafted.tree == alone(EAGLES[0]).tree
    unsure = told(RoutedDrafter(EAGLES, routing=Routing(gate=1.0, batched=batched))).draft(SHAPE)
    assert (unsure.num_drafts, unsure.skipped) == (3, False)


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
