"""P-EAGLE against the published code's numbers, its layouts, and how much it drafts."""

from typing import Any

import pytest
import torch
from heads_place import along, begun, near
from safetensors.torch import load_file
from spoiled import NESTED, SpoiledHead, target_of
from torch import Tensor

from outrider_drafters import Activations, TreeShape, grow_tree, load_drafter, load_tap
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.families.peagle.family import FAMILY, PEagleDrafter
from outrider_drafters.load import recognize_family
from outrider_proto.tree import DraftTree

DRAFTS = 5
TEXT = [7, 41, 199, 3, 88, 120, 17, 250, 66, 5, 23, 9]


@pytest.fixture
def head(tmp_path, golden) -> SpoiledHead:
    """A copy of the golden head."""
    return SpoiledHead(tmp_path / "head", golden, "peagle")


def answers(head: SpoiledHead) -> Tensor:
    rows = torch.randn(len(TEXT) - 2, 64, generator=torch.Generator().manual_seed(6))
    return along(begun(head.load(), TEXT, rows), range(DRAFTS - 1))


@pytest.mark.parametrize("number", range(3))
def test_speculators_own_code_gives_the_same(number, golden):
    """On a state that has been through the rounds before."""
    directory, target = golden / "peagle_speculators", golden / "target_l8"
    drafter, tap = load_drafter(directory / "drafter", target_of(target)), load_tap(directory / "drafter", target)
    assert isinstance(drafter, PEagleDrafter)
    assert tap.info == drafter.tap
    arrays = load_file(directory / "golden.safetensors")
    hidden = {layer: arrays[f"tap{place}"][0] for place, layer in enumerate(tap.hidden_layers)}
    rows, text = tap.rows(Activations(torch.empty(0), torch.empty(0), hidden)), arrays["sequence_ids"][0].tolist()
    near(drafter.mask_feature, arrays["mask_feature"])
    state = drafter.new_state()
    for each in range(number + 1):
        start = int(arrays[f"round{each}_start"])
        state.append(text[state.num_tokens : start + 1])
        state.add_features(state.num_features, rows[state.num_features : start])
        logits = along(state, range(DRAFTS - 1))
    context = arrays[f"round{number}_context"][0]
    near(rows[start - len(context) : start], context)
    near(logits[:, logits.isfinite().all(0)], arrays[f"round{number}_logits"][0])
    tree = grow_tree(state, drafter.plan)
    assert list(tree.tokens) == arrays[f"round{number}_greedy_tokens"][0].tolist()


def test_what_a_config_leaves_unsaid(head):
    head.config["norm_before_residual"] = False
    said = answers(head)
    for key in ("norm_before_residual", "embed_requires_grad", "norm_output"):
        del head.config[key]
    near(answers(head), said)
    head.config["norm_before_residual"] = True
    assert not torch.allclose(answers(head), said, atol=1e-2)


def test_vllms_flat_config(head):
    said = answers(head)
    flat: dict[str, Any] = head.config.pop(NESTED) | {"ptd_token_id": head.config.pop("mask_token_id")}
    own = ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "fc_norm", "norm_before_residual")
    head.config = flat | {key: head.config[key] for key in own}
    head.tensors["mask_hidden"] = head.tensors["mask_hidden"].view(1, -1)
    near(answers(head), said)
    assert head.load().num_drafts == 8


def test_the_embedding_is_its_own_or_the_targets(head):
    assert head.load().embed is not target_of(head.target).embed
    assert head.load(",embedding=target").embed is target_of(head.target).embed
    head.config["embed_requires_grad"] = False
    assert head.load().embed is target_of(head.target).embed


def test_drafts_a_chain_or_the_likeliest_paths(head):
    drafter = head.load()
    assert drafter.plan == TreeShape.chain(DRAFTS)
    state = begun(drafter, TEXT)
    best = along(state, range(DRAFTS - 1)).argmax(-1).tolist()
    assert grow_tree(state, drafter.plan) == DraftTree.chain(best)
    assert head.load(",ddtree=12").plan == TreeShape.best_first(DRAFTS, 12)


def test_the_files_say_how_much_to_draft(head):
    (method,) = head.config["speculators_config"]["proposal_methods"]
    method["speculative_tokens"] = 3
    assert head.load().num_drafts == 3
    more = head.load(",drafts=11")
    assert more.plan == TreeShape.chain(11)
    assert more.tap == head.load().tap
    head.config["speculators_config"]["proposal_methods"] = []
    assert head.load().num_drafts == 8
    head.config |= {"num_depths": 6, "down_sample_ratio": 0.7, "down_sample_ratio_min": 0.2}
    assert head.load().num_drafts == 6


def test_mask_hidden_alone_is_p_eagles(head):
    del head.config["speculators_model_type"]
    for prefix in ("", "model."):
        head.tensors = {prefix + name.removeprefix("model."): tensor for name, tensor in head.tensors.items()}
        head.save()
        assert recognize_family(DrafterFiles.open(DrafterSource(str(head.path)))) is FAMILY
    head.load()
