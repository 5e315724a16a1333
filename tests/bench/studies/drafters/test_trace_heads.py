"""`outrider-bench trace` with heads, beyond the golden cases: their own trees, a whole model with its heads, and
Hydra++, whose prefix layer remembers a session on the server."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import traces
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from outrider_drafters import (
    Activations,
    TargetWeights,
    grow_tree,
    load_drafter,
    load_tap,
)

PROMPT = [1, 205, 36, 252, 143, 44, 179, 124, 18, 114, 78, 177]


def trace(target: Path, drafter: Path, new_tokens: int = 32, **settings) -> dict:
    report = traces.trace(target, drafter, PROMPT, new_tokens, **settings)
    assert report["matches_baseline"]
    return report


@pytest.fixture
def target(golden: Path) -> Path:
    return golden / "target_vicuna_tiny"


@pytest.mark.parametrize(("case", "num_nodes"), [("medusa_v01", 63), ("hydra_mlp", 61)])
def test_heads_draft_along_their_own_choices_unless_asked_otherwise(golden, target, case, num_nodes):
    """mc_sim_7b_63, without its fourth level where there are three heads."""
    own = trace(target, golden / case / "drafter")
    assert {len(cycle["tokens"]) for cycle in own["cycles"]} == {num_nodes}
    dynamic = trace(target, golden / case / "drafter", breadth=3, levels=9, budget=12)
    assert {len(cycle["tokens"]) for cycle in dynamic["cycles"]} == {12}
    assert max(max(cycle["depths"]) for cycle in dynamic["cycles"]) <= 4
    assert dynamic["output_ids"] == own["output_ids"]


def test_a_whole_model_is_target_and_drafter(golden, target, tmp_path):
    """Medusa v1.0: its heads were trained with the model beside them."""
    heads = torch.load(golden / "medusa_v01" / "drafter" / "medusa_lm_head.pt", weights_only=True)
    whole = load_file(target / "model.safetensors") | {f"medusa_head.{name}": tensor for name, tensor in heads.items()}
    directory = tmp_path / "medusa-1.0"
    shutil.copytree(target, directory, copy_function=shutil.copyfile)
    save_file(whole, directory / "model.safetensors", metadata={"format": "pt"})
    report = trace(directory, directory)
    assert report["family"] == "medusa"
    assert report["cycles"] == trace(target, golden / "medusa_v01" / "drafter")["cycles"]


@pytest.fixture
def hydra_plus(golden: Path, target: Path, tmp_path: Path) -> Path:
    """hydra_mlp's heads behind a prefix layer that changes hidden states a little, so that they still draft well."""
    tensors = torch.load(golden / "hydra_mlp" / "drafter" / "hydra_lm_head.pt", weights_only=True)
    named = {}
    for name, tensor in tensors.items():
        kind, *rest = name.split(".")
        shifted = {"hydra_mlp": [kind, rest[0], "1", *rest[2:]], "hydra_lm_head": [kind, rest[0], "1", *rest[1:]]}
        named[".".join(shifted.get(kind, [kind, *rest]))] = tensor
    generator = torch.Generator().manual_seed(2)
    layer = "prefix_embeding_layer.layers.0."
    for projection in ("q", "k", "v", "o"):
        named[f"{layer}self_attn.{projection}_proj.weight"] = torch.randn(64, 64, generator=generator) * 0.08
    for name, rows, columns in (("gate", 40, 64), ("up", 40, 64), ("down", 64, 40)):
        named[f"{layer}mlp.{name}_proj.weight"] = torch.randn(rows, columns, generator=generator) * 0.05
    named |= {f"{layer}{norm}.weight": torch.ones(64) for norm in ("input_layernorm", "post_attention_layernorm")}
    hidden = load_file(golden / "hydra_mlp" / "forward.safetensors")["hidden_post_norm"]
    named["prefix_embeding_layer.norm.weight"] = hidden.square().mean().sqrt().expand(64)
    directory = tmp_path / "hydra++"
    directory.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in named.items()}, directory / "hydra_lm_head.safetensors")
    (directory / "config.json").write_text(json.dumps({"hydra_head_arch": "prefix-mlp"}))
    return directory


def test_hydra_plus_drafts_as_on_a_prefix_computed_again(target, hydra_plus):
    report = trace(target, hydra_plus, new_tokens=40)
    assert report["family"] == "hydra"
    assert report["mean_acceptance_length"] > 1.5
    model = LlamaForCausalLM.from_pretrained(target).eval()
    drafter, tap = load_drafter(hydra_plus, TargetWeights.load(target)), load_tap(hydra_plus, target)
    tokens = [*PROMPT, report["cycles"][0]["root"]]
    for cycle in report["cycles"]:
        with torch.inference_mode():
            hidden = model.model(torch.tensor([tokens[:-1]])).last_hidden_state[0]
        state = drafter.new_state()
        state.append(tokens)
        rows = tap.new_state().rows(Activations(torch.empty(0), torch.empty(0), {-1: hidden}))
        state.add_features(len(rows) - 1, rows[-1:])
        tree = grow_tree(state, drafter.plan)
        assert (list(tree.tokens), list(tree.parents)) == (cycle["tokens"], cycle["parents"])
        tokens += [*(cycle["tokens"][node] for node in cycle["accepted"]), cycle["bonus"]]
