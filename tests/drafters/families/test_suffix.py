"""Suffix decoding as a drafter: the candidates' tree, whatever shape is asked for, and nothing else."""

import math

import pytest
from heads_place import begun, paths_of
from hypothesis import given
from hypothesis import strategies as st

from outrider_drafters import TreeShape, grow_tree, load_drafter, load_tap
from outrider_drafters.families.suffix.family import TREE, SuffixDrafter
from outrider_drafters.families.suffix.index import GrowingText, candidates
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_drafters.routing.rules import Routing
from outrider_drafters.trees.grow import grow
from outrider_proto.errors import UsageError

VOCABULARY = 6
texts = st.lists(st.integers(0, VOCABULARY - 2), min_size=1, max_size=40)


def state_of(text: list[int]):
    return begun(SuffixDrafter(VOCABULARY), text)


def found(text: list[int]):
    grown = GrowingText()
    grown.append(text)
    return candidates(grown)


def paths(tree, values) -> dict[tuple[int, ...], float]:
    return dict(zip(paths_of(tree), values, strict=True))


@given(text=texts)
def test_a_tree_that_is_large_enough_holds_all_candidates_with_their_probabilities(text):
    wanted, drafted = found(text), grow(state_of(text), TreeShape(32, 32, 32))
    grown = paths(drafted.tree, map(math.exp, drafted.scores))
    assert grown == pytest.approx(paths(wanted.tree, wanted.probabilities), rel=1e-5)


def test_without_a_pattern_it_reaches_nothing():
    state = state_of([1, 2, 3])
    assert state.max_levels == 0
    assert len(grow_tree(state, TREE)) == 0
    with pytest.raises(UsageError, match="did not occur before"):
        state.root_logits()
    with pytest.raises(UsageError, match="append the prompt"):
        SuffixDrafter(VOCABULARY).new_state().root_logits()


def test_needs_no_files(golden, tiny_target):
    drafter = load_drafter("suffix", tiny_target)
    assert (drafter.family, drafter.vocab_size) == ("suffix", 23)
    assert not drafter.tap.fingerprint
    assert load_tap("suffix", golden / "target_tiny") is None
    for option in ("copy=3", "suffix=1", "ngram=2"):
        with pytest.raises(UsageError, match=f"option {option[:-2]}: family suffix takes"):
            load_drafter(f"suffix,{option}", tiny_target)


@pytest.fixture(scope="module")
def tiny_target(tiny_drafters):
    return tiny_drafters["eagle2"].target


def test_a_gate_sees_how_sure_the_counts_are():
    """Not 1, as where the only candidate is taken for certain."""
    text = [1, 2, 3, 1, 2]
    for gate, skipped in ((0.4, True), (0.9, False)):
        heads = [SuffixDrafter(VOCABULARY), SuffixDrafter(VOCABULARY)]
        state = begun(RoutedDrafter(heads, ("a", "b"), Routing(gate=gate)), text)
        assert state.draft(TREE).skipped is skipped
