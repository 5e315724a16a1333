"""The block against transformers' own layers, and its fused form against itself."""

import pytest
import torch
from heads_place import random_network
from transformers import LlamaConfig, LlamaModel, Qwen2Config, Qwen2Model, Qwen3Config, Qwen3Model

from outrider_drafters.blocks import layers
from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.layers import BlockShape, LlamaBlock, causal_mask

SIZES = {"vocab_size": 20, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}


KINDS = [(LlamaModel, LlamaConfig), (Qwen2Model, Qwen2Config), (Qwen3Model, Qwen3Config)]


@pytest.mark.parametrize(("model", "config"), KINDS)
@torch.no_grad()
def test_block_is_the_layer_of_transformers(model, config):
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    theirs = random_network(0, lambda: model(config(**SIZES, head_dim=8, rope_parameters=rope)))
    shape = BlockShape(32, 4, 2, 8, 44, rope_theta=5000.0, qkv_bias=model is Qwen2Model, qk_norm=model is Qwen3Model)
    block = LlamaBlock(shape)
    block.load_state_dict(theirs.layers[0].state_dict())
    embeds = torch.randn(2, 7, 32)
    hidden = block.self_attend(embeds, shape.rope(torch.arange(7)), causal_mask(7, embeds.device))
    expected = theirs(inputs_embeds=embeds).last_hidden_state
    torch.testing.assert_close(theirs.norm(hidden), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("input_norm", [True, False])
@pytest.mark.parametrize(("qkv_bias", "qk_norm"), [(True, False), (False, True), (False, False)])
@torch.no_grad()
def test_fused_block_is_the_block(packed, input_norm, qkv_bias, qk_norm):
    torch.manual_seed(1)
    shape = BlockShape(32, 4, 2, 8, 44, qkv_bias=qkv_bias, qk_norm=qk_norm)
    block = random_network(1, lambda: LlamaBlock(shape, input_norm=input_norm))
    x, rope = torch.randn(9, 32), shape.rope(torch.arange(9))
    expected = block.self_attend(x[None], rope, causal_mask(9, x.device))[0]
    fused = FusedBlock(block, packed=packed)
    cache = fused.new_cache()
    fused.append_kv(x[:4], shape.rope(torch.arange(4)), cache)
    mask = causal_mask(9, x.device)[4:]
    torch.testing.assert_close(fused.run(x[4:], shape.rope(torch.arange(4, 9)), cache, mask), expected[4:])
    asked = fused.cross_attend(x[-1:], shape.rope(torch.tensor([8])), [(cache.keys, cache.values)], [1])
    torch.testing.assert_close(asked, expected[-1:])
    torch.testing.assert_close((cache.keys, cache.values), block.keys_values(x[None], rope))


def test_few_keys_are_attended_to_as_many_are(monkeypatch):
    torch.manual_seed(3)
    shape = BlockShape(32, 4, 2, 8, 44)
    block, x, rope = LlamaBlock(shape), torch.randn(5, 9, 32, requires_grad=True), shape.rope(torch.arange(9))
    found = []
    for few in (64, 0):
        monkeypatch.setattr(layers, "FEW_KEYS", few)
        out = block.self_attend(x, rope)
        found.append((out, *torch.autograd.grad(out.square().sum(), [x, *block.parameters()])))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
