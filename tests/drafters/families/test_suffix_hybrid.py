"""A drafter with candidates: its drafts, what stays the inner drafter's, and how it is asked for."""

import json
import math
import shutil

import pytest
import torch
from heads_place import begun

from outrider_drafters import TargetWeights, TreeShape, grow_tree, load_drafter
from outrider_drafters.checkpoints.draft_vocabulary import DraftLogits
from outrider_drafters.contracts.drafter import UNLIMITED
from outrider_drafters.families.eagle2.family import Eagle2Drafter
from outrider_drafters.families.suffix.hybrid import COPY, SUFFIX, HybridDrafter, blended
from outrider_drafters.families.suffix.index import History, reading
from outrider_drafters.trees.grow import TreeGrowth
from outrider_drafters.trees.predraft import predraft
from outrider_proto.errors import UsageError
from outrider_proto.tree import DraftTree

COPIES = {"shortest": 0, "alone_from": 3}
BLENDS = {"shortest": 1, "alone_from": 0}
BOTH = {"shortest": 1, "alone_from": 3}
REPEATS = [1, 2, 3, 4, 5, 6, 1, 2, 3]  # its last three tokens occurred before, and 4 5 6 1 ... followed
PAIRS = [1, 2, 3, 4, 5, 6, 2, 3]  # only its last two did
NEW = [1, 2, 3, 4, 5]


@pytest.fixture(scope="session")
def inner(tiny_drafters):
    return tiny_drafters["eagle2"]


def state_of(drafter, tokens: list[int]):
    features = torch.randn(len(tokens) - 1, drafter.tap.width, generator=torch.Generator().manual_seed(len(tokens)))
    return begun(drafter, tokens, features)


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
