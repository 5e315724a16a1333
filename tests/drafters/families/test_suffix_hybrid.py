"""A drafter with candidates: its drafts, what stays the inner drafter's, and how it is asked for."""

import json
import math
import shutil

import pytest
import torch
from heads_place import begun
from hypothesis import given
from hypothesis import strategies as st
from text_edits import edited, edits_of

from outrider_drafters import TargetWeights, TreeShape, grow_tree, load_drafter
from outrider_drafters.checkpoints.draft_vocabulary import DraftLogits
from outrider_drafters.contracts.drafter import UNLIMITED
from outrider_drafters.families.eagle2.family import Eagle2Drafter
from outrider_drafters.families.suffix.hybrid import COPY, SUFFIX, HybridDrafter, blended
from outrider_drafters.families.suffix.index import GrowingText, History, candidates, reading
from outrider_drafters.trees.grow import TreeGrowth, grow
from outrider_drafters.trees.predraft import predraft
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT, DraftTree

COPIES = {"shortest": 0, "alone_from": 3}
BLENDS = {"shortest": 1, "alone_from": 0}
BOTH = {"shortest": 1, "alone_from": 3}
REPEATS = [1, 2, 3, 4, 5, 6, 1, 2, 3]  # its last three tokens occurred before, and 4 5 6 1 ... followed
PAIRS = [1, 2, 3, 4, 5, 6, 2, 3]  # only its last two did
NEW = [1, 2, 3, 4, 5]
texts = st.lists(st.integers(0, 4), min_size=1, max_size=24)


@pytest.fixture(scope="session")
def inner(tiny_drafters):
    return tiny_drafters["eagle2"]


def state_of(drafter, tokens: list[int]):
    state = begun(drafter, tokens)
    features = torch.randn(len(tokens) - 1, drafter.tap.width, generator=torch.Generator().manual_seed(len(tokens)))
    state.add_features(0, features)
    return state


def test_a_repeated_text_is_copied_as_far_as_the_tree_goes(inner):
    state = state_of(HybridDrafter(inner, **COPIES), REPEATS)
    assert grow_tree(state, TreeShape(4, 5, 16)) == DraftTree((4, 5, 6, 1, 2), (-1, 0, 1, 2, 3))


def test_a_copy_takes_no_pass_of_the_drafter(inner, monkeypatch):
    state = state_of(HybridDrafter(inner, **BOTH), REPEATS)
    monkeypatch.setattr(type(state.inner), "expand_together", None)
    monkeypatch.setattr(type(state.inner), "root_logits", None)
    assert len(grow_tree(state, TreeShape())) == 5
    assert state.max_levels == UNLIMITED


@pytest.mark.parametrize(("options", "text"), [(COPIES, PAIRS), (BOTH, NEW), (BLENDS, NEW)])
def test_elsewhere_the_inner_drafter_drafts(inner, options, text):
    hybrid, plain = (state_of(drafter, text) for drafter in (HybridDrafter(inner, **options), inner))
    assert grow_tree(hybrid, TreeShape()) == grow_tree(plain, TreeShape())


@pytest.mark.parametrize("text", [REPEATS, PAIRS])
def test_branches_of_both_have_their_blended_probabilities(inner, text):
    """Written out: c of the candidates, and of the rest what the drafter gives, all along every path."""
    hybrid, plain = (state_of(drafter, text) for drafter in (HybridDrafter(inner, **BLENDS), inner))
    drafted = grow(hybrid, TreeShape(3, 3, 12))
    grown = GrowingText()
    grown.append(text)
    found = candidates(grown)
    own = plain.tree_logits(sorted_by_level(drafted.tree)[0]).log_softmax(-1).exp()
    rows = {node: 1 + place for place, node in enumerate(sorted_by_level(drafted.tree)[1])} | {ROOT: 0}
    at = {ROOT: ROOT}  # the candidate that a node is, if any
    scores = {ROOT: 0.0}
    for node, (token, parent) in enumerate(zip(drafted.tree.tokens, drafted.tree.parents, strict=True)):
        above = at.get(parent)
        shares = {}
        if above is not None:
            before = 1.0 if above == ROOT else found.probabilities[above]
            shares = {
                found.tree.tokens[one]: found.probabilities[one] / before
                for one in range(len(found.tree))
                if found.tree.parents[one] == above
            }
            if (child := found.tree.child(above, token)) is not None:
                at[node] = child
        probability = shares.get(token, 0.0) + (1 - sum(shares.values())) * float(own[rows[parent], token])
        scores[node] = scores[parent] + math.log(probability)
        assert drafted.scores[node] == pytest.approx(scores[node], abs=1e-4)
    assert len(set(at) - {ROOT}) >= 2  # candidates are among them
    assert len(at) < len(drafted.tree)  # and others


def sorted_by_level(tree: DraftTree) -> tuple[DraftTree, list[int]]:
    """The tree with its nodes sorted by level, as tree_logits takes it, and the nodes in that order."""
    depths = tree.depths()
    order = sorted(range(len(tree)), key=lambda node: depths[node])
    place = {node: number for number, node in enumerate(order)} | {ROOT: ROOT}
    return DraftTree(tuple(tree.tokens[n] for n in order), tuple(place[tree.parents[n]] for n in order)), order


@pytest.mark.parametrize("options", [COPIES, BLENDS, BOTH])
def test_several_texts_are_drafted_together(inner, options):
    """As the server does: some copy, the others' levels run in one pass."""
    several = [REPEATS, PAIRS, NEW, REPEATS[:-1]]
    drafter, shape = HybridDrafter(inner, **options), TreeShape(2, 3, 6)
    growths = [TreeGrowth(state_of(drafter, text), shape) for text in several]
    assert all(growth.can_step_together for growth in growths)
    while any(TreeGrowth.step_together(growths)):
        pass
    assert [growth.drafted().tree for growth in growths] == [
        grow_tree(state_of(drafter, text), shape) for text in several
    ]


@pytest.mark.parametrize("options", [*(pytest.param(each, marks=pytest.mark.slow) for each in (COPIES, BLENDS)), BOTH])
@given(tokens=texts, edits=edits_of(texts))
def test_equals_a_fresh_state_after_any_edits(inner, options, tokens, edits):
    drafter = HybridDrafter(inner, **options)
    state = drafter.new_state()
    for told in edited(state, tokens, edits):
        fresh = begun(drafter, told)
        assert grow_tree(state, TreeShape.chain(3)) == grow_tree(fresh, TreeShape.chain(3))


@pytest.mark.parametrize("family", ["moa", "eagle3", "medusa", "hydra++", "independent", "dflash", "dspark", "text"])
def test_it_works_with_every_family(tiny_drafters, family):
    drafter = HybridDrafter(tiny_drafters[family], **BLENDS)
    for text in (REPEATS, PAIRS, NEW):
        state = state_of(drafter, text)
        for plan in (TreeShape(3, 3, 8), drafter.plan or TreeShape()):
            drafted = grow(state, plan)
            assert all(score <= 1e-6 for score in drafted.scores)
            if text is not NEW and len(drafted.tree):
                assert drafted.tree.child(ROOT, 4) is not None


@pytest.mark.parametrize("options", [COPIES, BLENDS, BOTH])
def test_what_it_holds_likely_is_the_inner_drafters_view(inner, options):
    """Else a text written without the target would never leave its first loop."""
    hybrid, plain = (state_of(drafter, REPEATS) for drafter in (HybridDrafter(inner, **options), inner))
    copied = grow_tree(hybrid, TreeShape.chain(4))
    for tree in (DraftTree(), copied):
        assert torch.equal(hybrid.tree_logits(tree), plain.tree_logits(tree))
    # And so are the outcomes that it drafts for ahead of a verdict.
    made, wanted = (predraft(state, copied, TreeShape(3, 3, 9), 3, ends=()) for state in (hybrid, plain))
    assert [one.outcome for one in made] == [one.outcome for one in wanted]
    assert made == wanted or options["shortest"]


@given(text=texts, tree=st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 5)), max_size=12))
def test_ahead_of_a_verdict_candidates_go_on_where_the_tree_follows_them(inner, text, tree):
    """As in a draft that has expanded the same nodes, whatever tree it is."""
    nodes: list[tuple[int, int]] = []
    for parent, token in tree:
        if parent < len(nodes) and (parent, token) not in nodes:
            nodes.append((parent, token))
    sorted_tree, _ = sorted_by_level(DraftTree(tuple(t for _, t in nodes), tuple(p for p, _ in nodes)))
    ahead, drafting = (state_of(HybridDrafter(inner, **BLENDS), text) for _ in range(2))
    ahead.tree_logits(sorted_tree)
    drafting.root_logits()
    depths = sorted_tree.depths()
    for depth in sorted(set(depths)):
        level = [node for node in range(len(sorted_tree)) if depths[node] == depth]
        drafting.expand([sorted_tree.tokens[node] for node in level], [sorted_tree.parents[node] for node in level])
    bonus = [(node, token) for node in range(ROOT, len(sorted_tree)) for token in (1, 2)]
    below = [state.expand([token for _, token in bonus], [node for node, _ in bonus]) for state in (ahead, drafting)]
    torch.testing.assert_close(*below)


def test_candidates_beyond_the_draft_vocabulary_are_drafted():
    drafted = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    narrow = DraftLogits.of(drafted, torch.tensor([1, 4, 6]), 9)
    wide = torch.full((2, 9), -math.inf).index_copy(1, torch.tensor([1, 4, 6]), drafted)
    following = [{4: 0.25, 7: 0.5}, {}]
    both = [blended(logits, following).float() for logits in (narrow, wide)]
    torch.testing.assert_close(both[0].as_subclass(torch.Tensor), both[1])
    own = wide[0].softmax(-1)
    assert both[1][0].exp().tolist() == pytest.approx(
        [0.25 * float(own[token]) + following[0].get(token, 0.0) for token in range(9)]
    )
    torch.testing.assert_close(both[1][1], wide[1].log_softmax(-1))
    assert blended(narrow, [{}, {}]) is narrow


def test_it_drafts_from_a_history_it_may_read(inner):
    state = state_of(HybridDrafter(inner, **COPIES), NEW)
    with reading(History([[3, 4, 5, 9, 8]])):
        assert grow_tree(state, TreeShape()).tokens == (9, 8)
    assert 9 not in grow_tree(state, TreeShape.chain(1)).tokens


def test_they_are_options_of_every_drafter_but_those_that_only_copy(golden):
    target, eagle = TargetWeights.load(golden / "target_l4"), golden / "eagle2_llama/drafter"
    drafter = load_drafter(f"{eagle},copy=4,suffix=2", target)
    assert isinstance(drafter, HybridDrafter)
    assert (drafter.family, drafter.shortest, drafter.alone_from) == ("eagle2", 2, 4)
    for only_copies in ("lookup", "suffix"):
        with pytest.raises(UsageError, match=f"option copy, suffix: family {only_copies} takes"):
            load_drafter(f"{only_copies},copy=4,suffix=1", target)
    with pytest.raises(UsageError, match="'suffix=x': need a whole number"):
        load_drafter(f"{eagle},suffix=x", target)


def test_a_drafter_can_say_so_itself(golden, tmp_path):
    """As one that ships does; the option comes before it, and 0 turns it off."""
    target = TargetWeights.load(golden / "target_l4")
    drafter = shutil.copytree(golden / "eagle2_llama/drafter", tmp_path / "drafter")
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps({**config, COPY: 4, SUFFIX: 1}))
    both, alone = load_drafter(drafter, target), load_drafter(f"{drafter},suffix=0", target)
    assert (both.shortest, both.alone_from) == (1, 4)
    assert (alone.shortest, alone.alone_from) == (0, 4)
    assert isinstance(load_drafter(f"{drafter},copy=0,suffix=0", target), Eagle2Drafter)
    (drafter / "config.json").write_text(json.dumps({**config, COPY: -1}))
    with pytest.raises(UsageError, match=f"{COPY}=-1: need a whole number of at least 1"):
        load_drafter(drafter, target)
