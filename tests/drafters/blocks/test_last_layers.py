"""A target's last layers against the target itself, for every kind of target whose layers are known."""

import json
from pathlib import Path

import pytest
import torch
from heads_place import random_network
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GemmaConfig, LlamaConfig, MixtralConfig, PreTrainedConfig, Qwen2Config

from outrider_drafters import TargetWeights
from outrider_proto.errors import UsageError

SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4, "vocab_size": 24, "head_dim": 8}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16, "rope_theta": 5000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 5000.0}
SLIDING = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 3}
TARGETS = {
    "llama": LlamaConfig(**SIZES, rms_norm_eps=1e-4),
    "llama 3.1": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama wide heads": LlamaConfig(**(SIZES | {"head_dim": 16}), rope_parameters=YARN),
    "qwen2": Qwen2Config(**{key: value for key, value in SIZES.items() if key != "head_dim"}),
    "qwen2 sliding": Qwen2Config(**{key: value for key, value in SIZES.items() if key != "head_dim"}, **SLIDING),
}


def saved(directory: Path, config: PreTrainedConfig):
    model = random_network(1, lambda: AutoModelForCausalLM.from_config(config, attn_implementation="eager"))
    model.save_pretrained(directory)
    return model


def edit(directory: Path, **changes) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize("count", [1, 3])
def test_layers_are_the_targets(tmp_path, name, count):
    model = saved(tmp_path, TARGETS[name])
    tokens = torch.randint(24, (2, 12), generator=torch.Generator().manual_seed(2))
    states = model(tokens, output_hidden_states=True).hidden_states
    layers = TargetWeights.load(tmp_path).last_layers(count)
    everywhere = torch.arange(12).expand(2, -1)
    finished = layers.forward_train(torch.zeros_like(states[0]), states[-1 - count], everywhere)
    torch.testing.assert_close(finished.hidden, states[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GemmaConfig(**SIZES), "layers of model_type gemma cannot run on the client; need one of llama, mistral"),
        (MixtralConfig(**SIZES, num_local_experts=2), "layers of model_type mixtral cannot run"),
        (LlamaConfig(**SIZES, hidden_act="gelu"), "hidden_act=gelu: need silu"),
        (
            LlamaConfig(**SIZES, attention_bias=True),
            r"layer with unknown tensor model\.layers\.3\.self_attn\.o_proj\.bias",
        ),
        (LlamaConfig(**SIZES, mlp_bias=True), r"layer with unknown tensor model\.layers\.3\.mlp\.down_proj\.bias"),
    ],
)
def test_layers_of_another_kind_are_refused(tmp_path, config, message):
    saved(tmp_path, config)
    with pytest.raises(UsageError, match=message):
        TargetWeights.load(tmp_path).last_layers(1)


def test_older_buffers_and_spellings_are_read(tmp_path):
    """A Llama 3.1 as transformers 4 wrote it: rope_theta outside of rope_scaling, and a stored table."""
    saved(tmp_path, TARGETS["llama 3.1"])
    before = TargetWeights.load(tmp_path).last_layers(1).shape
    edit(tmp_path, rope_parameters=None, rope_theta=5000.0, rope_scaling=LLAMA3)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.3.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(tensors, tmp_path / "model.safetensors")
    assert TargetWeights.load(tmp_path).last_layers(1).shape == before


def test_windows_without_layer_types(tmp_path):
    saved(tmp_path, TARGETS["qwen2 sliding"])
    edit(tmp_path, layer_types=None)
    assert TargetWeights.load(tmp_path).last_layers(2).windows == (None, 3)
    edit(tmp_path, use_sliding_window=False)
    assert TargetWeights.load(tmp_path).last_layers(2).windows == (None, None)
