"""EAGLE-1/2 and HASS heads in every layout, against a slow network written from the formulas: no cache, no fusion."""

import json
from pathlib import Path

import pytest
import torch
from eagle3_formulas import Formulas
from heads_place import begun, random_network
from safetensors.torch import load_file, save_file

from outrider_drafters import Eagle2, Eagle2Sizes, TargetWeights, load_drafter, load_tap
from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.blocks.rope import RopeScaling
from outrider_proto.tree import ROOT

TARGET = "target_l4"
WIDTH, HEADS, EPS = 64, 4, 1e-5


def outputs(formulas, embeds, features):
    """Of rows of embeddings [n, E] of tokens 1 .. n and features [n, E] of positions 0 .. n - 1."""
    tensors = formulas.tensors
    if "embedding_layernorm.weight" in tensors:
        embeds = formulas.norm(embeds, tensors["embedding_layernorm.weight"])
    x = torch.cat((embeds, features), dim=-1) @ tensors["fc.weight"].T + tensors.get("fc.bias", 0.0)
    for layer in (f"layers.{i}." for i in range(sum(name.endswith("q_proj.weight") for name in tensors))):
        norm = tensors.get(f"{layer}input_layernorm.weight")
        x = x + formulas.attention(x if norm is None else formulas.norm(x, norm), layer, None)
        x = formulas.mixed(x, layer)
    return x


def expected(tensors, frozen, embed, features, tokens, theta=10000.0, factor=1.0):
    """Logits after `tokens`; rows beyond the features go on from the row before's output."""
    frequencies = theta ** -(torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS)) / factor
    formulas = Formulas(tensors, HEADS, 2, embed, frozen.lm_head, frequencies, EPS)
    features = features[: len(tokens) - 1]
    while True:
        made = outputs(formulas, embed[tokens[1 : len(features) + 1]], features)
        if len(features) == len(tokens) - 1:
            norm = tensors.get("pre_lm_head_layernorm.weight")
            return (made[-1] if norm is None else formulas.norm(made[-1], norm)) @ frozen.lm_head.T
        features = torch.cat((features, made[-1:]))


def check(drafter, tensors, frozen, embed=None, **rope):
    """Prefix in two portions, a stale row, a tree of two levels, and gone on after a rollback."""
    embed = frozen.embed if embed is None else embed
    tokens, features = [5, 9, 3, 7, 2, 8], torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(2))

    def is_expected(logits, after, known):
        torch.testing.assert_close(
            logits, expected(tensors, frozen, embed, features[:known], after, **rope), atol=2e-4, rtol=1e-4
        )

    state = begun(drafter, tokens[:4], features[:3])
    is_expected(state.root_logits(), tokens[:4], 3)
    state.append(tokens[4:])
    is_expected(state.root_logits(), tokens, 3)
    state.add_features(3, features[3:])
    is_expected(state.root_logits(), tokens, 5)
    children = state.expand([11, 12], [ROOT, ROOT])
    grandchild = state.expand([13], [1])
    is_expected(children[0], [*tokens, 11], 5)
    is_expected(children[1], [*tokens, 12], 5)
    is_expected(grandchild[0], [*tokens, 12, 13], 5)
    state.rollback(5)
    state.append([4])
    is_expected(state.root_logits(), [*tokens[:5], 4], 5)


def sizes_of(**changes) -> Eagle2Sizes:
    own = {name: changes.pop(name) for name in ("layers", "fc_bias", "norms") if name in changes}
    return Eagle2Sizes(BlockShape(WIDTH, HEADS, 2, WIDTH // HEADS, 48, **changes), **own)


def write(directory: Path, frozen: TargetWeights, **sizes):
    """A random head as its own export, and its tensors."""
    eagle = random_network(5, lambda: Eagle2(sizes_of(**sizes)), std=0.15)
    eagle.export(directory, frozen.sizes)
    return {name: tensor.detach() for name, tensor in eagle.state_dict().items()}


LINEAR = {"type": "linear", "factor": 4.0}
UNSAID = ("num_key_value_heads", "rope_theta", "rope_scaling", "head_dim", "bias", "qkv_bias")
LAYOUTS = {  # sizes, settings that are written over the exported ones, options; and the rope that comes of them
    "plain": ({}, {}, "", {}),
    "three layers": ({"layers": 3, "fc_bias": False, "qkv_bias": True}, {}, "", {}),
    "layers are counted, not read from the config": ({}, {"num_hidden_layers": 32}, "", {}),
    "a Vicuna config leaves much unsaid": ({}, dict.fromkeys(UNSAID, "gone"), "", {}),
    "a base of choice": ({"rope_theta": 5e5}, {}, ",rope_theta=7000", {"theta": 7000.0}),
    "linear scaling is exported": ({"rope_scaling": RopeScaling("linear", 2.5)}, {}, "", {"factor": 2.5}),
    # cnets1.py builds the scaled rotary embedding without the base.
    "linear scaling forgets the base": ({}, {"rope_scaling": LINEAR, "rope_theta": 5e5}, "", {"factor": 4.0}),
    "scaling and a base of choice": ({}, {"rope_scaling": LINEAR}, ",rope_theta=500000", {"theta": 5e5, "factor": 4.0}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(tmp_path, frozen, name):
    sizes, config, options, rope = LAYOUTS[name]
    tensors, path = write(tmp_path, frozen, **sizes), tmp_path / "config.json"
    exported = json.loads(path.read_text())
    assert "rope_scaling" not in sizes or exported["rope_scaling"]["type"] == "linear"
    path.write_text(json.dumps({key: value for key, value in (exported | config).items() if value != "gone"}))
    check(load_drafter(f"{tmp_path}{options}", frozen), tensors, frozen, **rope)


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
def test_a_copy_of_the_embedding(tmp_path, frozen, pickled):
    """HASS files always hold one. One that differs is the head's own, as the published code takes it."""
    tensors = write(tmp_path, frozen)
    other = torch.randn(frozen.embed.shape, generator=torch.Generator().manual_seed(3))
    for embed in (frozen.embed, other):
        held = {**tensors, "embed_tokens.weight": embed.clone()}
        (tmp_path / "model.safetensors").unlink(missing_ok=True)
        if pickled:
            torch.save(held, tmp_path / "pytorch_model.bin")
        else:
            save_file(held, tmp_path / "model.safetensors")
        loaded = load_drafter(tmp_path, frozen)
        assert (loaded.embed is frozen.embed) == (embed is frozen.embed)
        check(loaded, tensors, frozen, embed)
    check(load_drafter(f"{tmp_path},embedding=own", frozen), tensors, frozen, other)
    check(load_drafter(f"{tmp_path},embedding=target", frozen), tensors, frozen)


SPECULATORS = {
    "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
    "speculators_model_type": "eagle",
    "speculators_config": {"algorithm": "eagle", "proposal_methods": [{"speculative_tokens": 3}]},
    "transformer_layer_architecture": "LlamaDecoderLayer",
}
OLDER = {"embedding_layernorm": "embed_layernorm", "layers.0.input_layernorm": "hidden_layernorm"}
OLDER |= {"pre_lm_head_layernorm": "lm_head_layernorm"}


def to_speculators(name: str) -> str:
    return name.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc.")


def to_older(name: str) -> str:
    stem = name.removesuffix(".weight")
    return f"{OLDER[stem]}.weight" if stem in OLDER else name


def write_speculators(directory: Path, frozen: TargetWeights, rename=to_speculators, nested=None, **sizes):
    """A random head in speculators' layout, and its tensors by SafeAILab's names; norms far from one."""
    write(directory, frozen, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        eagle = Eagle2(sizes_of(**sizes))
        for name, parameter in eagle.named_parameters():
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.15)
    tensors = {name: tensor.detach().clone() for name, tensor in eagle.state_dict().items()}
    save_file({rename(name): tensor for name, tensor in tensors.items()}, directory / "model.safetensors")
    llama = {"model_type": "llama", "num_attention_heads": HEADS, "rms_norm_eps": EPS, "vocab_size": 256}
    config = SPECULATORS | {"fusion_bias": sizes.get("fc_bias", True), "layernorms": sizes.get("norms", False)}
    config |= {"transformer_layer_config": llama | {"num_hidden_layers": 1, "rope_theta": 777.0} | (nested or {})}
    (directory / "config.json").write_text(json.dumps(config))
    return tensors


@pytest.mark.parametrize("sizes", [{"fc_bias": True}, {"norms": True, "fc_bias": False, "qkv_bias": True}], ids=str)
def test_speculators(tmp_path, frozen, sizes):
    tensors = write_speculators(tmp_path, frozen, **sizes)
    drafter = load_drafter(tmp_path, frozen)
    assert drafter.family == "eagle2"
    assert load_tap(tmp_path, frozen.directory).info == drafter.tap
    check(drafter, tensors, frozen, theta=777.0)
    check(load_drafter(f"{tmp_path},rope_theta=99", frozen), tensors, frozen, theta=99.0)


def test_what_speculators_converts_from(tmp_path, frozen):
    """HASS's names of the norms, with SafeAILab's of the rest."""
    tensors = write_speculators(tmp_path, frozen, rename=to_older, norms=True)
    assert {"fc.weight", "hidden_layernorm.weight"} < set(load_file(tmp_path / "model.safetensors"))
    flat = {"num_attention_heads": HEADS, "rms_norm_eps": EPS, "vocab_size": 256, "rope_theta": 55.0}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    check(load_drafter(tmp_path, frozen), tensors, frozen, theta=55.0)


def test_speculators_scale_rope_as_their_layer_does(tmp_path, frozen):
    """With the base of the config, unlike SafeAILab's code."""
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 777.0}
    tensors = write_speculators(tmp_path, frozen, nested={"rope_theta": None, "rope_parameters": scaling})
    check(load_drafter(tmp_path, frozen), tensors, frozen, theta=777.0, factor=4.0)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 64
    write_speculators(tmp_path, frozen, nested={"rope_scaling": scaling})
    assert load_drafter(tmp_path, frozen).block.shape.rope_scaling.kind == "llama3"
