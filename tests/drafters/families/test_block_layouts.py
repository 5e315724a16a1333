"""DFlash and DSpark of DeepSpec and speculators, every variant, against formulas written out slowly."""

import pytest
import torch
from block_forms import DRAFTED, FORMS, RANK, Place, expected_path, fed, random_target
from block_formulas import BLOCK, VOCABULARY, WIDTH
from heads_place import paths_of

from outrider_drafters import TargetWeights, TreeShape, grow_tree
from outrider_proto.tree import ROOT


@pytest.fixture(scope="module")
def frozen() -> TargetWeights:
    return random_target()


@pytest.fixture
def place(tmp_path, request) -> Place:
    return Place(tmp_path / "drafter", FORMS[getattr(request, "param", "vanilla, DeepSpec")])


@pytest.mark.parametrize("place", list(FORMS), indirect=True)
@pytest.mark.parametrize(
    "lacking", [pytest.param(0, marks=pytest.mark.slow), 3, pytest.param(6, marks=pytest.mark.slow)]
)
def test_agrees_with_the_formulas(place, lacking, frozen):
    """Along two paths of one tree, which share no node."""
    state, rows = fed(place, frozen, lacking)
    paths = [[7, 2, 19, 3], [5, 5, 11, 2]]
    depth = BLOCK - place.form.first
    root = state.root_logits()
    parents = [[ROOT, ROOT], *([2 * level - 2, 2 * level - 1] for level in range(1, depth - 1))]
    levels = [state.expand([path[level] for path in paths], each) for level, each in enumerate(parents)]
    kept = DRAFTED if place.form.few else torch.arange(VOCABULARY)
    for number, path in enumerate(paths):
        logits, _ = expected_path(place, rows, path[: depth - 1])
        ours = torch.stack([torch.as_tensor(root), *(level[number] for level in levels)])
        torch.testing.assert_close(ours[:, kept], logits, atol=1e-4, rtol=1e-4)
        assert int(ours.isfinite().sum()) == ours[:, kept].numel()


def test_a_tree_ends_node_by_node(place, frozen):
    """What the drafter holds likely, in tree_logits, is not cut."""
    assert place.load(frozen, ",ddtree=24").plan == TreeShape.best_first(BLOCK, 24)
    state, rows = fed(place, frozen, options=",confidence=0.5,ddtree=24")
    tree = grow_tree(state, TreeShape.best_first(BLOCK, 24))
    whole = fed(place, frozen)[0].tree_logits(tree)
    torch.testing.assert_close(state.tree_logits(tree), whole)
    assert whole.isfinite().all()
    paths = paths_of(tree)
    for node in {*tree.parents} - {ROOT}:
        assert float(expected_path(place, rows, paths[node])[1][-1]) >= 0.5


@pytest.mark.parametrize("place", ["vanilla, speculators"], indirect=True)
def test_an_embedding_that_is_left_out_is_the_targets(place, frozen):
    with_own = fed(place, frozen)[0].root_logits()
    place.tensors["embed_tokens.weight"] = frozen.embed.clone()
    as_target = fed(place, frozen)[0].root_logits()
    assert not torch.equal(as_target, with_own)
    place.tensors["verifier_norm.weight"] = torch.ones(WIDTH)  # exported along, and not read
    drafter = place.load(frozen)
    del place.tensors["embed_tokens.weight"]
    assert torch.equal(place.load(frozen).embed, drafter.embed)


READINGS = {  # a form, what its config.json says of the root's row, an option; the row that drafts first, what to try
    "speculators": ("vanilla, speculators", {}, "", 0, "sample_from_anchor=false"),
    "speculators, by the option": ("vanilla, speculators", {}, ",sample_from_anchor=false", 1, ""),
    "speculators, by the config": ("vanilla, speculators", {"sample_from_anchor": False}, "", 1, ""),
    "the option overrules": ("vanilla, speculators", {"sample_from_anchor": False}, ",sample_from_anchor=true", 0, ""),
    "SpecForge": ("vanilla, SpecForge", {}, "", 1, "sample_from_anchor=true"),
    "SpecForge, by the option": ("vanilla, SpecForge", {}, ",sample_from_anchor=true", 0, ""),
    "Model-Optimizer": ("vanilla, SpecForge", {"shift_label": True}, "", 0, ""),
    "for SGLang": ("vanilla, SpecForge for SGLang", {}, "", 0, "sample_from_anchor=false"),
    "DFlash": ("dflash, speculators, defaults", {}, "", 1, ""),
}


@pytest.mark.parametrize(("form", "says", "option", "first", "hint"), READINGS.values(), ids=READINGS)
def test_the_row_that_drafts_first_can_be_chosen_and_what_is_taken_is_told(
    form, says, option, first, hint, frozen, tmp_path, caplog
):
    place = Place(tmp_path / "drafter", FORMS[form])
    place.config.pop("sample_from_anchor", None)
    place.config |= says
    drafter = place.load(frozen, option)
    assert drafter.num_drafts == BLOCK - first
    assert drafter.hint == (f"give the drafter the option {hint}" if hint else "")
    assert drafter.hint in caplog.text
    assert ("config.json lacks sample_from_anchor" in caplog.text) == bool(hint)


@pytest.mark.parametrize(
    "renamed", [("markov_head.", ""), ("markov_head.", "logit_head.markov_head.")], ids=["NVIDIA's", "early"]
)
def test_other_names_of_the_markov_head_are_read(renamed, frozen, tmp_path):
    place, old = Place(tmp_path / "drafter", FORMS["vanilla, SpecForge"]), renamed[0]
    place.tensors = {name.replace(*renamed) if name.startswith(old) else name: t for name, t in place.tensors.items()}
    assert place.load(frozen).network.markov_head.markov_w1.weight.shape == (VOCABULARY, RANK)
