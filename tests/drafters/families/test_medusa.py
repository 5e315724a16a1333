"""Medusa against the published code's numbers, in every layout, and what its files may not hold."""

import json

import pytest
import torch
from heads_place import along, close, fed
from safetensors.torch import load_file

from outrider_drafters import TargetWeights, TreeShape, grow_tree, load_drafter
from outrider_drafters.contracts.tree_choices import TreeChoices

CASE, TARGET = "medusa_v01", "target_vicuna_tiny"
VLLM_CONFIG = {"hidden_size": 64, "num_heads": 4, "num_hidden_layers": 1, "vocab_size": 256, "medusa_fc_bias": True}


def levels(drafter, arrays) -> torch.Tensor:
    """Logits of every head, drafted one below the other."""
    return along(fed(drafter, arrays), [3] * (drafter.num_heads - 1))


def vllm(tensors: dict[str, torch.Tensor], prefix: str = "") -> dict[str, torch.Tensor]:
    """The same heads under vLLM's names."""
    renamed = {}
    for name, tensor in tensors.items():
        head, layer, *rest = name.split(".")
        where = f"blocks.{head}.layers.{layer}.{rest[1]}" if rest[0] == "linear" else f"lm_heads.{head}.weight"
        renamed[prefix + where] = tensor
    return renamed


def test_heads_agree(case, frozen, arrays):
    close(levels(load_drafter(case / "drafter", frozen), arrays), arrays["medusa_logits"][:, 10])


@pytest.mark.parametrize("name", ["mc_sim_7b_63", "vicuna_7b_stage2", "small"])
def test_trees_agree_with_the_published_buffers(case, frozen, arrays, name):
    buffers = load_file(case / f"buffers_{name}.safetensors")
    choices = TreeChoices.load(case / "choices_small.json" if name == "small" else name)
    tree = grow_tree(fed(load_drafter(case / "drafter", frozen), arrays), choices)
    assert list(tree.depths()) == buffers["position_ids"][1:].tolist()
    assert tree.ancestors().tolist() == buffers["attn_mask"][1:, 1:].bool().tolist()
    best = arrays["medusa_logits"][:, 10].topk(10).indices.flatten()  # after the root's token, as its code has them
    assert list(tree.tokens) == best[buffers["tree_indices"][1:] - 1].tolist()
    assert paths(tree) == rows(buffers["retrieve_indices"])


def paths(tree) -> list[list[int]]:
    """Nodes from root to leaf, the root being 0: leaves from the last one on, longer paths first by nature."""
    found = []
    for leaf in reversed(range(len(tree))):
        if leaf not in tree.parents:
            path, node = [], leaf
            while node >= 0:
                path.insert(0, node + 1)
                node = tree.parents[node]
            found.append([0, *path])
    return found


def rows(retrieve_indices: torch.Tensor) -> list[list[int]]:
    return [[node for node in row if node >= 0] for row in retrieve_indices.tolist()]


@pytest.mark.parametrize("file", ["medusa_lm_head.safetensors", "model.safetensors"])
def test_text_generation_inferences_file(place, tensors, arrays, file):
    config = {"medusa_num_heads": 2, "medusa_num_layers": 3}  # published configurations say less than files hold
    drafter = place.write(tensors, config, file).load()
    assert drafter.num_heads == 4
    close(levels(drafter, arrays), arrays["medusa_logits"][:, 10])


def test_a_whole_models_file(place, target, tensors, arrays):
    """v1.0: heads beside the fine-tuned target, which the same directory is for."""
    whole = load_file(target / "model.safetensors")
    config = json.loads((target / "config.json").read_text())
    place.write(
        whole | {f"medusa_head.{name}": tensor for name, tensor in tensors.items()}, config, "model.safetensors"
    )
    close(levels(place.load(), arrays), arrays["medusa_logits"][:, 10])
    assert torch.equal(TargetWeights.load(place.path).lm_head, whole["lm_head.weight"])
    assert load_drafter(place.path, TargetWeights.load(place.path)).family == "medusa"


def test_heads_without_an_output_use_the_targets(place, tensors, arrays, frozen):
    blocks = {name: tensor for name, tensor in tensors.items() if "linear" in name}
    drafter = place.write(blocks, {"medusa_num_heads": 4}).load()
    hidden = arrays["hidden_post_norm"][10]
    for head, logits in enumerate(levels(drafter, arrays)):
        mixed = hidden @ tensors[f"{head}.0.linear.weight"].T + tensors[f"{head}.0.linear.bias"]
        close(logits, frozen.lm_head @ (hidden + mixed * mixed.sigmoid()))


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
def test_vllms_layout(place, tensors, arrays, prefix):
    close(levels(place.write(vllm(tensors, prefix), VLLM_CONFIG).load(), arrays), arrays["medusa_logits"][:, 10])


@pytest.mark.parametrize("own_name", [True, False])
def test_vllms_heads_may_share_an_output(place, tensors, arrays, own_name):
    held = {name: tensor for name, tensor in vllm(tensors).items() if not name.startswith("lm_heads")}
    held["lm_head.weight" if own_name else "lm_heads.0.weight"] = shared = torch.randn(256, 64)
    if not own_name:
        held["lm_heads.1.weight"] = torch.zeros(256, 64)  # vLLM reads the first one alone
    drafter = place.write(held, VLLM_CONFIG | {"original_lm_head": True}).load()
    each = place.write(
        {name: tensor for name, tensor in held.items() if "blocks" in name}
        | {f"lm_heads.{head}.weight": shared for head in range(4)},
        VLLM_CONFIG,
    ).load()
    close(levels(drafter, arrays), levels(each, arrays))


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("told", [{"truncated_vocab_size": 40}, {}])
def test_vllms_truncated_vocabulary(place, tensors, arrays, cut, told):
    """Rows of the chosen tokens alone, or of all of them: the others are never drafted."""
    tokens = torch.randperm(256, generator=torch.Generator().manual_seed(1))[:40]
    held = {
        name: tensor[tokens] if cut and name.startswith("lm_heads") else tensor
        for name, tensor in vllm(tensors).items()
    }
    logits = levels(place.write(held | {"token_map": tokens}, VLLM_CONFIG | told).load(), arrays)
    close(logits[:, tokens], arrays["medusa_logits"][:, 10, tokens])
    others = torch.ones(256, dtype=torch.bool).index_fill(0, tokens, False)
    assert (logits[:, others] == -torch.inf).all()
    tree = grow_tree(fed(place.load(), arrays), TreeShape(4, 3, 20))
    assert set(tree.tokens) <= set(tokens.tolist())


@pytest.mark.parametrize(
    ("token_map", "config", "message"),
    [
        (torch.tensor([1, 2, 2]), {}, "token_map: need different tokens from 0 to 255"),
        (torch.tensor([-1, 3]), {}, "token_map: need different tokens from 0 to 255"),
        (torch.ones(2), {}, "need a row of token ids"),
        (torch.tensor([1, 2]), {"truncated_vocab_size": 3}, "has 2 tokens: config.json says truncated_vocab_size=3"),
    ],
)
def test_what_is_no_token_map_is_refused(place, tensors, token_map, config, message):
    place.write(vllm(tensors) | {"token_map": token_map}, VLLM_CONFIG | config).refused(message)
