"""A drafter that copies where the text repeats itself: its drafts, and what stays the inner drafter's."""

import json
import shutil

import pytest
import torch

from outrider_drafters import TargetWeights, TreeShape, grow_tree, load_drafter
from outrider_drafters.contracts.drafter import UNLIMITED
from outrider_drafters.families.eagle2.drafter import Eagle2Drafter
from outrider_drafters.families.lookup.copying import COPY, CopyingDrafter
from outrider_drafters.trees.grow import TreeGrowth
from outrider_drafters.trees.predraft import predraft
from outrider_proto.errors import UsageError
from outrider_proto.tree import DraftTree

SHORTEST = 3
REPEATS = [1, 2, 3, 4, 5, 6, 1, 2, 3]  # its last three tokens occurred before, and 4 5 6 1 ... followed
NEW = [1, 2, 3, 4, 5, 6, 2, 3]  # only its last two did


@pytest.fixture(scope="session")
def inner(tiny_drafters):
    return tiny_drafters["eagle2"]


def state_of(drafter, tokens: list[int]):
    state = drafter.new_state()
    state.append(tokens)
    features = torch.randn(len(tokens) - 1, drafter.tap.width, generator=torch.Generator().manual_seed(len(tokens)))
    state.add_features(0, features)
    return state


def test_a_repeated_text_is_copied_as_far_as_the_tree_goes(inner):
    state = state_of(CopyingDrafter(inner, SHORTEST), REPEATS)
    assert grow_tree(state, TreeShape(4, 5, 16)) == DraftTree((4, 5, 6, 1, 2), (-1, 0, 1, 2, 3))


def test_a_copy_ends_with_the_text(inner):
    state = state_of(CopyingDrafter(inner, SHORTEST), [1, 2, 3, 4, 1, 2, 3])
    assert grow_tree(state, TreeShape(4, 8, 16)).tokens == (4, 1, 2, 3)
    assert state.max_levels == UNLIMITED


def test_elsewhere_the_inner_drafter_drafts(inner):
    copying, plain = (state_of(drafter, NEW) for drafter in (CopyingDrafter(inner, SHORTEST), inner))
    assert grow_tree(copying, TreeShape()) == grow_tree(plain, TreeShape())


def test_several_texts_are_drafted_together(inner):
    """As the server does: some copy, the others' levels run in one pass."""
    texts = [REPEATS, NEW, [5, 4, 3], REPEATS[:-1]]
    drafter, shape = CopyingDrafter(inner, SHORTEST), TreeShape(2, 3, 6)
    growths = [TreeGrowth(state_of(drafter, text), shape) for text in texts]
    assert all(growth.can_step_together for growth in growths)
    while any(TreeGrowth.step_together(growths)):
        pass
    assert [growth.drafted().tree for growth in growths] == [
        grow_tree(state_of(drafter, text), shape) for text in texts
    ]


def test_what_it_holds_likely_is_the_inner_drafters_view(inner):
    """Else a text written without the target would never leave its first loop."""
    copying, plain = (state_of(drafter, REPEATS) for drafter in (CopyingDrafter(inner, SHORTEST), inner))
    copied = grow_tree(copying, TreeShape())
    for tree in (DraftTree(), copied):
        assert torch.equal(copying.tree_logits(tree), plain.tree_logits(tree))
    # And drafts below a copied tree grow from that view.
    made, wanted = (predraft(state, copied, TreeShape(), 3, ends=()) for state in (copying, plain))
    assert made == wanted
    assert made


def test_it_is_an_option_of_every_drafter_but_lookup(golden):
    target, eagle = TargetWeights.load(golden / "target_l4"), golden / "eagle2_llama/drafter"
    drafter = load_drafter(f"{eagle},copy=4", target)
    assert isinstance(drafter, CopyingDrafter)
    assert drafter.family == "eagle2"
    with pytest.raises(UsageError, match="option copy: family lookup takes ngram"):
        load_drafter("lookup,copy=4", target)


def test_a_drafter_can_say_so_itself(golden, tmp_path):
    """As one that ships does; the option comes before it, and 0 turns it off."""
    target = TargetWeights.load(golden / "target_l4")
    drafter = shutil.copytree(golden / "eagle2_llama/drafter", tmp_path / "drafter")
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps({**config, COPY: 4}))
    assert isinstance(load_drafter(drafter, target), CopyingDrafter)
    assert isinstance(load_drafter(f"{drafter},copy=0", target), Eagle2Drafter)
    (drafter / "config.json").write_text(json.dumps({**config, COPY: -1}))
    with pytest.raises(UsageError, match=f"{COPY}=-1: need a whole number of at least 1"):
        load_drafter(drafter, target)
