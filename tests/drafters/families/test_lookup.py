"""Lookup against transformers' own, and as a drafter without files."""

import math

import pytest
import torch
from heads_place import begun
from hypothesis import example, given
from hypothesis import strategies as st

from outrider_drafters import TreeShape, grow_tree, load_drafter, load_tap
from outrider_drafters.families.lookup.family import LookupDrafter
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT, DraftTree

VOCABULARY = 5
texts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30)
ngrams = st.integers(1, 4)


@given(tokens=texts, ngram=ngrams, count=st.integers(1, 12))
@example(tokens=[1, 1, 1], ngram=3, count=10)  # overlapping, and cut off where the text ends
@example(tokens=[1, 2, 4, 2, 3, 1, 2], ngram=1, count=3)  # the leftmost of several
def test_drafts_what_transformers_drafts(tokens, ngram, count):
    candidates = pytest.importorskip("transformers.generation.candidate_generator")
    theirs = candidates.PromptLookupCandidateGenerator(
        max_matching_ngram_size=ngram, num_output_tokens=count, max_length=10_000
    )
    sequence, _ = theirs.get_candidates(torch.tensor([tokens]))
    tree = grow_tree(begun(LookupDrafter(VOCABULARY, ngram), tokens), TreeShape.chain(count))
    assert tree == DraftTree.chain(sequence[0, len(tokens) :].tolist())


def test_the_matched_token_is_certain_and_all_others_impossible():
    state = begun(LookupDrafter(VOCABULARY), [1, 2, 3, 4, 1, 2])
    assert state.max_levels == 4
    assert state.root_logits().tolist() == [-math.inf] * 3 + [0.0, -math.inf]
    after = state.expand([3, 4], [ROOT, ROOT])
    assert after[0].argmax() == 4
    assert (after[1] == -math.inf).all()  # no token of the run
    assert state.expand([4], [0])[0].argmax() == 1
    assert (state.expand([4], [1])[0] == -math.inf).all()


def test_needs_no_files(golden, tiny_frozen):
    drafter = load_drafter("lookup", tiny_frozen)
    assert (drafter.family, drafter.vocab_size, drafter.ngram) == ("lookup", tiny_frozen.sizes.vocab, 3)
    assert drafter.plan == TreeShape.chain(10)
    assert not drafter.tap.fingerprint
    assert load_drafter("lookup,ngram=2,family=lookup", tiny_frozen).ngram == 2
    assert load_tap("lookup", golden / "target_tiny") is None


def test_refusals(tmp_path, monkeypatch, tiny_frozen):
    with pytest.raises(UsageError, match="ngram=0': need a whole number of at least 1"):
        load_drafter("lookup,ngram=0", tiny_frozen)
    with pytest.raises(UsageError, match="lookup: a drafter of family lookup, not moa"):
        load_drafter("lookup,family=moa", tiny_frozen)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lookup").mkdir()
    with pytest.raises(UsageError, match=r"lookup: not a model directory"):
        load_drafter("./lookup", tiny_frozen)


@pytest.fixture(scope="module")
def tiny_frozen(tiny_drafters):
    return tiny_drafters["eagle2"].target


def test_a_match_may_have_to_be_longer():
    state = begun(LookupDrafter(50, shortest=2), [1, 2, 3, 4, 2])
    assert state.max_levels == 0
    state.append([3])
    assert int(state.root_logits().argmax()) == 4
