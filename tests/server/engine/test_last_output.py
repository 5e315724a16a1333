"""The last layer's output before the final norm, which hidden_states do not hold, from every architecture."""

import pytest
import torch
from tiny_targets import CONFIGS, DEVICE, build, target
from torch import nn

from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_proto.errors import UsageError
from outrider_proto.tree import DraftTree
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import BatchSegment
from outrider_server.engine.hf_model import eager_attention
from outrider_server.engine.target import Target, TargetOutput
from outrider_server.kv.slot import KVSlot

TOKENS = [3, 41, 7, 7, 59, 12]


@torch.inference_mode()
def run(served: Target, wanted: frozenset[int]) -> TargetOutput:
    segment = BatchSegment(KVSlot(served.kv), len(TOKENS), DraftTree(), max_position=511)
    return served.forward(TOKENS, list(segment.positions), FlatBatch([segment]), [len(TOKENS) - 1], wanted)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_is_what_the_final_norm_reads(name):
    served, read = target(name), []
    hook = served.model.model.norm.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0][0]))
    try:
        with eager_attention(served.model), torch.inference_mode():
            served.model(torch.tensor([TOKENS], device=DEVICE))
    finally:
        hook.remove()
    hidden = run(served, frozenset({BEFORE_NORM, -1, 2})).hidden
    assert set(hidden) == {BEFORE_NORM, -1, 2}
    torch.testing.assert_close(hidden[BEFORE_NORM], read[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(served.model.model.norm(hidden[BEFORE_NORM]), hidden[-1])
    assert not torch.allclose(hidden[BEFORE_NORM], hidden[-1], atol=1e-2)


def test_nothing_stays_behind():
    served = target("qwen3")
    run(served, frozenset({2}))  # transformers puts hooks of its own
    before = dict(served.model.model.layers[-1]._forward_hooks)
    assert set(run(served, frozenset({BEFORE_NORM})).hidden) == {BEFORE_NORM}
    assert run(served, frozenset()).hidden == {}
    assert served.model.model.layers[-1]._forward_hooks == before


def test_a_model_whose_layers_are_not_found_is_refused():
    served = Target.of(build("llama"), fused=False)
    served.model.model.layers = nn.ModuleList([*served.model.model.layers, nn.Identity()])
    with pytest.raises(UsageError, match="llama: its 4 layers are not found"):
        run(served, frozenset({BEFORE_NORM}))
