"""EAGLE-3's training-time test against drafting itself, and what is exported."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from heads_place import begun
from safetensors.torch import load_file

from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.blocks.rope import RopeScaling
from outrider_drafters.families.eagle3.family import Eagle3Drafter
from outrider_drafters.families.eagle3.layer import Eagle3Sizes
from outrider_drafters.families.eagle3.network import Eagle3
from outrider_proto.tree import ROOT

TARGET = "target_l8"
BLOCK = BlockShape(64, 4, 2, 16, 40, rope_theta=12345.0, eps=3e-6)
PLAIN = Eagle3Sizes(BLOCK, vocab=256, draft_vocab=90, target_hidden=64, target_layers=(2, 4, 5))
SIZES = {
    "plain": PLAIN,
    "3.1": replace(PLAIN, fc_norm=True, norm_output=True),
    "as far as it goes": Eagle3Sizes(
        BlockShape(48, 4, 1, 10, 40, qkv_bias=True, qk_norm=True, rope_scaling=RopeScaling("linear", 2.0)),
        vocab=256,
        draft_vocab=256,
        target_hidden=64,
        target_layers=(1, 8),
        fc_bias=True,
        out_bias=True,
        input_norm=True,
        norm_before_residual=True,
        own_embedding=True,
    ),
    "last hidden state": replace(PLAIN, target_layers=()),
}


@pytest.fixture(params=list(SIZES))
def sizes(request) -> Eagle3Sizes:
    return SIZES[request.param]


def network(sizes: Eagle3Sizes) -> Eagle3:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        eagle = Eagle3(sizes)
        for name, parameter in eagle.named_parameters():
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
        if sizes.draft_vocab < sizes.vocab:
            eagle.set_draft_tokens(torch.randperm(sizes.vocab)[: sizes.draft_vocab].sort().values)
    return eagle.requires_grad_(False)


def test_every_step_is_what_drafting_computes(sizes, frozen):
    """Row t of step k: features up to t, and k drafted tokens, which are the true ones."""
    eagle, length, steps = network(sizes), 9, 4
    drafter = Eagle3Drafter(eagle, frozen)
    tokens = torch.randint(256, (length + 1,), generator=torch.Generator().manual_seed(1))
    fused = torch.randn(1, length, sizes.hidden, generator=torch.Generator().manual_seed(2))
    made = eagle.forward_train(drafter.embed[tokens[None, 1:]], fused, steps)
    assert len(made) == steps
    ids = torch.arange(256) if eagle.draft_tokens is None else eagle.draft_tokens
    for row in range(length):
        state = begun(drafter, tokens[: row + 2].tolist(), fused[0, : row + 1])
        drafted = state.root_logits()
        for step in range(min(steps, length - row)):
            torch.testing.assert_close(eagle.lm_head(made[step].normed[0, row]), drafted[ids], atol=1e-4, rtol=1e-4)
            if row + step + 2 <= length:
                drafted = state.expand([int(tokens[row + step + 2])], [step - 1 if step else ROOT])[0]


def test_export_has_the_published_names(tmp_path: Path, frozen):
    network(PLAIN).export(tmp_path, frozen.sizes, torch.bfloat16)
    tensors = load_file(tmp_path / "model.safetensors")
    published = load_file(Path(__file__).parents[2] / "data/golden/eagle3_llama/drafter/model.safetensors")
    assert set(tensors) == set(published)
    assert {name for name in tensors if tensors[name].dtype != torch.bfloat16} == {"d2t", "t2d"}
    ids = torch.arange(90) + tensors["d2t"]
    assert torch.equal(tensors["t2d"].nonzero().flatten(), ids)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["draft_vocab_size"], config["vocab_size"]) == (90, 256)
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
