"""Hydra against the published code's numbers, its layouts, and what its files may not hold. Hydra++'s prefix layer:
test_hydra_tap.py."""

import json

import pytest
import torch
from heads_place import along, close, fed
from safetensors.torch import load_file

from outrider_drafters import grow_tree, load_drafter, load_tap
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.families.hydra.network import Hydra, HydraSizes
from outrider_proto.tree import ROOT

CASE, TARGET = "hydra_mlp", "target_vicuna_tiny"


def along_the_text(drafter, arrays, position=10) -> torch.Tensor:
    """Logits of every head, drafted along the text's own tokens: what the teacher-forced pass has at this row."""
    tokens = arrays["input_ids"].flatten().tolist()[position + 2 :][: drafter.num_heads - 1]
    return along(fed(drafter, arrays, position), tokens)


def test_heads_agree(case, frozen, arrays):
    drafter = load_drafter(case / "drafter", frozen)
    for position in (0, 7, 15):
        close(along_the_text(drafter, arrays, position), arrays["hydra_logits"][:, position])


def test_the_tree_agrees_with_the_published_buffers(case, frozen, arrays):
    buffers = load_file(case / "buffers.safetensors")
    choices = TreeChoices.of(json.loads((case / "meta.json").read_text())["choices"])
    tree = grow_tree(fed(load_drafter(case / "drafter", frozen), arrays), choices)
    assert list(tree.depths()) == buffers["position_ids"][1:].tolist()
    assert tree.ancestors().tolist() == buffers["attn_mask"][1:, 1:].bool().tolist()


def by_formula(tensors, hidden, embeds, head, blocks=1):
    z = torch.cat((hidden, embeds.flatten()))
    for block in range(blocks):
        name = f"hydra_mlp.{head}.{block}."
        mixed = tensors[name + "linear.weight"] @ z + tensors[name + "linear.bias"]
        if name + "res_connection.weight" in tensors:
            z = tensors[name + "res_connection.weight"] @ z + tensors[name + "res_connection.bias"]
        z = z + mixed * mixed.sigmoid()
    return tensors[f"hydra_lm_head.{head}.weight"] @ z + tensors[f"hydra_lm_head.{head}.bias"]


@pytest.mark.parametrize("grounded", [True, False])
def test_several_blocks_grounded_or_not(place, arrays, frozen, grounded):
    hydra = Hydra(HydraSizes(64, 256, heads=2, blocks=3, grounded=grounded, tied=False))
    for parameter in hydra.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tensors = hydra.state_dict()
    drafter = place.write(tensors, {"hydra_head_arch": "mlp", "grounded_heads": grounded}).load()
    state, hidden = fed(drafter, arrays), arrays["hidden_post_norm"][10]
    root = arrays["input_ids"].flatten()[11].item()
    close(state.root_logits(), by_formula(tensors, hidden, frozen.embed[[root][: 1 if grounded else 0]], 0, 3))
    expanded = state.expand([5, 6], [ROOT, ROOT])
    for token, logits in zip([5, 6], expanded, strict=True):
        close(logits, by_formula(tensors, hidden, frozen.embed[[root, token][: 2 if grounded else 0]], 1, 3))
    assert torch.equal(expanded[0], expanded[1]) != grounded


def test_blocks_are_taken_in_order_however_they_are_numbered(place, tensors, arrays):
    """Modules for dropout shift the numbers of newer files."""
    renumbered = {}
    for name, tensor in tensors.items():
        kind, *rest = name.split(".")
        if kind == "hydra_mlp":
            name = ".".join((kind, rest[0], "1", *rest[2:]))
        if kind == "hydra_lm_head":
            name = ".".join((kind, rest[0], "1", rest[1]))
        renumbered[name] = tensor
    close(along_the_text(place.write(renumbered).load(), arrays), arrays["hydra_logits"][:, 10])


def test_a_hidden_state_from_deeper_is_asked_for(place, tensors, target):
    drafter = place.write(tensors, {"hydra_head_arch": "mlp", "hidden_state_offset": 2}).load()
    assert load_tap(place.path, target).hidden_layers == (-3,)
    state = drafter.new_state()
    state.append([1, 2, 3])
    state.add_features(2, torch.ones(1, 64))
    assert state.max_levels == 0  # not what lm_head reads: the root's own feature waits
