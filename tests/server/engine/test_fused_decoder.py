"""The fused forward pass: the same logits and hidden states as transformers' own, and the same answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_targets import build, random_tokens, random_tree, target, with_random_biases
from torch import nn

from outrider_drafters.blocks.packed_linear import can_pack
from outrider_drafters.contracts.tap import BEFORE_NORM, LAST
from outrider_proto.tree import DraftTree
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import BatchSegment
from outrider_server.engine.fused_decoder import FusedDecoder, fused_decoder
from outrider_server.engine.target import Target, TargetOutput
from outrider_server.kv.slot import KVSlot

HIDDEN = frozenset({0, 2, 4, LAST, BEFORE_NORM})


@torch.inference_mode()
def passes(served: Target, num_chain: int, tree: DraftTree, keep: list[int]) -> TargetOutput:
    """A context of 9 tokens, then a chain and a tree behind it."""
    rng, slot = np.random.default_rng(3), KVSlot(served.kv)
    for tokens, nodes, rows in ((random_tokens(rng, 9), DraftTree(), []), (random_tokens(rng, num_chain), tree, keep)):
        segment = BatchSegment(slot, len(tokens), nodes, max_position=511)
        flat = [*tokens, *nodes.tokens]
        output = served.forward(flat, list(segment.positions), FlatBatch([segment]), rows, HIDDEN)
        slot.commit(len(tokens))
    return output


@pytest.mark.parametrize(("num_chain", "num_nodes"), [(1, 0), (1, 5), (3, 20), (40, 0)])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        *((name, {}) for name in ("qwen2", "qwen2-window", "qwen3", "mistral", "mistral-window")),
    ],
)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "as on a device"])
def test_logits_and_hidden_states_are_those_of_transformers(num_chain, num_nodes, name, changes, packed):
    tree = random_tree(np.random.default_rng(1), num_nodes)
    num_rows = num_chain + num_nodes
    plain, model = (with_random_biases(build(name, **changes)) for _ in range(2))
    served = [Target.of(plain, fused=False), replace(Target.of(model), fused=FusedDecoder(model, packed=packed))]
    for keep in ([num_rows - 1], list(range(num_rows))):
        made = [passes(one, num_chain, tree, keep) for one in served]
        torch.testing.assert_close(made[1].logits, made[0].logits, atol=1e-4, rtol=1e-4)
        assert set(made[1].hidden) == set(made[0].hidden) == HIDDEN
        for layer in HIDDEN:
            torch.testing.assert_close(made[1].hidden[layer], made[0].hidden[layer], atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not can_pack(torch.zeros(1, 1).bfloat16()), reason="no products in bfloat16 on this processor")
@pytest.mark.parametrize(("num_chain", "num_nodes"), [(1, 0), (1, 16), (40, 0)])
def test_in_bfloat16_the_logits_differ_by_rounding_alone(num_chain, num_nodes):
    tree, num_rows = random_tree(np.random.default_rng(1), num_nodes), num_chain + num_nodes
    exact, *rounded = (
        passes(Target.of(build("llama").to(dtype), fused=fused), num_chain, tree, list(range(num_rows))).logits.float()
        for dtype, fused in ((torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True))
    )
    plain_error, fused_error = (float((logits - exact).square().mean().sqrt()) for logits in rounded)
    assert 0 < fused_error < 1.5 * plain_error


def test_other_models_keep_transformers_own_pass(monkeypatch):
    assert target("llama").fused is not None
    assert target("qwen3").fused is not None
    assert target("gemma2").fused is None
    assert fused_decoder(build("llama").half()) is None
    assert fused_decoder(build("llama", hidden_act="gelu")) is None
    monkeypatch.setattr("outrider_server.engine.fused_decoder._MOST_BYTES", 1000)
    large = fused_decoder(build("llama"))  # whose weights are not copied
    assert large is not None
    assert not any(layer.out._packed is not None for layer in large.layers)
    monkeypatch.undo()
    adapted = build("llama")

    class Adapted(nn.Linear):
        pass

    adapted.model.layers[1].mlp.down_proj = Adapted(48, 32, bias=False)
    assert fused_decoder(adapted) is None


def test_where_the_fused_pass_computes_something_else_transformers_own_serves(monkeypatch, caplog):
    monkeypatch.setattr("outrider_server.engine.fused_decoder._rotated", lambda heads, cos, sin: heads)
    assert Target.of(build("llama")).fused is None
    assert "the fused pass does not compute here" in caplog.text
