"""Models that cannot run on slots are refused at load, by a message that says why."""

import pytest
import torch
from tiny_targets import SIZES, build
from transformers import AutoModelForCausalLM
from transformers.models.gpt2 import GPT2Config
from transformers.models.mamba import MambaConfig

from outrider_proto.errors import UsageError
from outrider_server.engine.target import Target


def test_layers_that_keep_no_kv_are_refused():
    model = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2))
    with pytest.raises(UsageError, match="mamba"):
        Target.of(model)


def test_learned_positions_are_no_obstacle():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64, eos_token_id=2, bos_token_id=1)
    assert Target.of(AutoModelForCausalLM.from_config(config)).max_context == 64


def test_a_model_whose_own_attention_differs_is_refused(monkeypatch):
    model = build("llama")
    monkeypatch.setattr("outrider_server.engine.batch_segment.BatchSegment.mask", lambda *_: None)  # sees its future
    with pytest.raises(UsageError, match="slots do not reproduce"):
        Target.of(model)


def test_a_layer_outside_the_interface_is_refused():
    model = build("llama")
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(UsageError, match="3 of 4 layers"):
        Target.of(model)


def test_a_layer_without_an_index_is_refused():
    model = build("llama")
    del model.model.layers[1].self_attn.layer_idx
    with pytest.raises(UsageError, match="layer_idx"):
        Target.of(model)


def test_length_dependent_positions_need_a_context_limit():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 256}
    model = build("llama", rope_parameters=rope)
    with pytest.raises(UsageError, match="--max-context 256"):
        Target.of(model)
    assert Target.of(model, max_context=256).max_context == 256


def test_the_context_cannot_exceed_the_targets_own():
    with pytest.raises(UsageError, match=f"max_context=1000: need 2 to {SIZES['max_position_embeddings']}"):
        Target.of(build("llama"), max_context=1000)
