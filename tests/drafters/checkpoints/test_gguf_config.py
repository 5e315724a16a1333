"""Keys of GGUF's metadata: each is applied as transformers applies it, or refused by name."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_models import GEMMA3_ROPE, KEYS, MODELS, PARTIAL, make_model, write_model
from transformers import AutoModelForCausalLM

from outrider_drafters.checkpoints.gguf_config import language_model_config
from outrider_drafters.checkpoints.gguf_target import write_target
from outrider_drafters.readers.gguf_file import GgufFile, StoredTensors
from outrider_proto.errors import UsageError

TENSORS = "tensors"  # in a row's keys: tensors of the file, not a key
BASE = {"rope_theta": 300.0}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
YARN_FIELDS = {**BASE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def rope(**fields: object) -> dict[str, Any]:
    return {"rope_parameters": {**BASE, **fields}}


def partial(**fields: object) -> dict[str, Any]:
    return {"rope_parameters": {**PARTIAL["rope_parameters"], **fields}}


def longrope(pairs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    long, short = ([float(start + pair) for pair in range(pairs)] for start in (4, 1))
    tensors = {"rope_factors_long.weight": torch.tensor(long), "rope_factors_short.weight": torch.tensor(short)}
    keys = {TENSORS: tensors, "rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.3}
    fields = {"long_factor": long, "short_factor": short, "original_max_position_embeddings": 16}
    return keys, {"rope_type": "longrope", "attention_factor": 1.3, "factor": 8.0, **fields}


def llama3(original: int, theta: float, width: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compute rope_freqs.weight as convert_hf_to_gguf.py does."""
    waves = 2 * np.pi * theta ** (np.arange(0, width, 2) / width)
    smooth = np.clip((original / waves - 1) / 3, 0, 1)
    fields = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    divisors = torch.tensor(1 / ((1 - smooth) / 8 + smooth), dtype=torch.float32)
    fields |= {"rope_type": "llama3", "rope_theta": theta, "original_max_position_embeddings": original}
    return {TENSORS: {"rope_freqs.weight": divisors}, "rope.freq_base": theta}, {"rope_parameters": fields}


LONG_KEYS, LONG_FIELDS = longrope(8)
PHI_KEYS, PHI_FIELDS = longrope(5)
GEMMA3_SCALED = {**GEMMA3_ROPE, "full_attention": {**BASE, "rope_type": "linear", "factor": 4.0}}
GEMMA3_LOCAL = {**GEMMA3_ROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}
SLIDES, SEES, PATTERN = "sliding_attention", "full_attention", "attention.sliding_window_pattern"
CAPS = {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0}
YARNS = [  # keys beside YARN's, and fields
    ({"rope.scaling.original_context_length": None}, {"original_max_position_embeddings": 128}),
    ({"rope.scaling.attn_factor": 1.2}, {"attention_factor": 1.2 * (1 + 0.1 * np.log(4))}),
    ({"rope.scaling.yarn_attn_factor": 0.8}, {"attention_factor": 0.8}),
    ({"rope.scaling.yarn_beta_fast": 9.0, "rope.scaling.yarn_beta_slow": 0.2}, {"beta_fast": 9.0, "beta_slow": 0.2}),
]
# Architecture, keys of the file (None leaves one out), fields of transformers' config.
APPLIED = [
    *((name, {}, {}) for name in MODELS),
    *((name, LINEAR, rope(rope_type="linear", factor=4.0)) for name in ("llama", "qwen2", "qwen3moe", "starcoder2")),
    *((name, YARN, {"rope_parameters": YARN_FIELDS}) for name in ("llama", "llama+experts", "qwen2moe", "qwen3")),
    *((name, LINEAR, partial(rope_type="linear", factor=4.0)) for name in ("nemotron", "stablelm", "minimax-m2")),
    ("llama", {"rope.scaling.factor": 4.0}, rope(rope_type="linear", factor=4.0)),
    ("llama", {"rope.scale_linear": 4.0}, rope(rope_type="linear", factor=4.0)),
    ("llama", {**LINEAR, "rope.scaling.type": "none"}, {}),
    ("llama", {"rope.scaling.finetuned": True, "tensor_data_layout": "Meta AI original pth", "logit_scale": 0.0}, {}),
    *(("llama", {**YARN, **keys}, rope(**{**YARN_FIELDS, **fields})) for keys, fields in YARNS),
    ("gpt-oss", YARN, rope(**YARN_FIELDS, truncate=False)),
    ("minimax-m2", YARN, partial(**YARN_FIELDS)),
    ("llama", *llama3(8192, 500000.0, 16)),
    ("llama", *llama3(40, 300.0, 16)),
    ("llama", LONG_KEYS, rope(**LONG_FIELDS)),
    ("phi3", PHI_KEYS, {**partial(**PHI_FIELDS), "original_max_position_embeddings": 16}),
    ("phi3", {"attention.sliding_window": 5}, {"sliding_window": 5}),
    ("starcoder2", {"attention.sliding_window": 5}, {"sliding_window": 5}),
    ("llama", {"attention.key_length": 24, "attention.value_length": 24}, {"head_dim": 24}),
    ("qwen2", {"attention.key_length": 24, "attention.value_length": 24}, {"head_dim": 24}),
    ("llama", {}, {"tie_word_embeddings": True}),
    ("llama", {}, {"attention_bias": True, "mlp_bias": True}),
    ("stablelm", {}, {"use_qkv_bias": True, "use_parallel_residual": True}),
    ("qwen2moe", {"expert_weights_norm": True}, {"norm_topk_prob": True}),
    ("qwen3moe", {"expert_weights_norm": False}, {"norm_topk_prob": False}),
    *((name, CAPS, CAPS) for name in ("gemma2", "gemma3")),
    *((name, {PATTERN: 1}, {"layer_types": [SEES] * 2}) for name in ("gemma2", "gemma3", "gpt-oss")),
    *((name, {PATTERN: [True, True]}, {"layer_types": [SLIDES] * 2}) for name in ("gemma2", "gpt-oss")),
    ("nemotron", {"attention.layer_norm_rms_epsilon": 0.01}, {}),
    ("gemma2", {"attn_logit_softcapping": 0.0}, {"attn_logit_softcapping": None}),
    ("gemma3", {"attention.sliding_window": None}, {"layer_types": [SEES] * 2}),
    ("gemma3", {**LINEAR, PATTERN: 2}, {"rope_parameters": GEMMA3_SCALED, "layer_types": [SLIDES, SEES]}),
    ("gemma3", {"rope.freq_base_swa": 50.0}, {"rope_parameters": GEMMA3_LOCAL}),
    ("gemma2", {"block_count": 46, "attention.key_length": 32, "attention.value_length": None},
     {"num_hidden_layers": 46, "head_dim": 32}),
]  # fmt: skip


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.arange(1, 40)[None]).logits


@pytest.mark.parametrize(("name", "keys", "fields"), APPLIED)
def test_what_is_applied(tmp_path, name, keys, fields):
    model = make_model(name, fields)
    tensors = keys.get(TENSORS, {})
    write_model(tmp_path / "m.gguf", name, model, {k: v for k, v in keys.items() if k != TENSORS}, tensors)
    write_target(tmp_path / "m.gguf", tmp_path / "made")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype=torch.float32)
    assert torch.allclose(logits(ours), logits(model), atol=1e-4, rtol=1e-4)
    assert {"bos_token_id": None, "eos_token_id": 0}.items() <= ours.config.to_dict().items()
    plain = make_model(name, {})
    if fields and [p.shape for p in plain.parameters()] == [p.shape for p in model.parameters()]:
        plain.load_state_dict(model.state_dict())
        assert not torch.allclose(logits(plain), logits(model), atol=1e-2), "the key makes no difference here"


SPECIAL = [
    ("llama", {"rope.dimension_count": 8}, "need 16, the width of a head"),
    ("llama", {"attention.value_length": 8}, "need 16, the width of a key"),
    ("llama", {"attention.head_count_kv": [2, 1]}, "need the same for all layers"),
    ("llama", {"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, "rope.scaling.type=longrope"),
    ("llama", {**LINEAR, "rope.scaling.attn_factor": 1.2}, "rope.scaling.attn_factor=1.2"),
    ("phi3", YARN, "rope.scaling.type=yarn"),
    ("llama", {"attention.causal": False}, "attention.causal=False: need True"),
    ("qwen3moe", {"expert_gating_func": 2}, "expert_gating_func=2: need 1"),
    ("gemma3", {"attention.sliding_window_pattern": [True]}, "need one for each of 2 layers"),
    ("llama", {"attention.head_count": 0}, "attention.head_count=0: need a whole number of at least 1"),
    ("llama", {"rope.freq_base": -5.0}, "rope.freq_base=-5.0: need a number of at least 0"),
    ("llama", {"rope.scaling.factor": float("nan")}, "rope.scaling.factor=nan: need a number"),
    ("llama", {"embedding_length": "64"}, "embedding_length=64: need a whole number"),
    ("llama", {"embedding_length": None}, r"lacks llama\.embedding_length"),
    ("llama", {"attention.layer_norm_rms_epsilon": None}, r"lacks llama\.attention\.layer_norm_rms_epsilon"),
]


def metadata(name: str, keys: dict[str, Any]) -> GgufFile:
    architecture = name.partition("+")[0]
    values = {f"{architecture}.{k}": v for k, v in {**KEYS, **MODELS[name][2], **keys}.items() if v is not None}
    return GgufFile(Path("m.gguf"), architecture, values, StoredTensors({}))


@pytest.mark.parametrize(("name", "keys", "message"), SPECIAL)
def test_values_that_are_refused(name, keys, message):
    with pytest.raises(UsageError, match=rf"m\.gguf: .*{message}"):
        language_model_config(metadata(name, keys))


def llama_cpp_keys() -> list[str]:
    groups = (getattr(gguf.Keys, group) for group in vars(gguf.Keys) if not group.startswith("_"))
    texts = [text for group in groups for text in vars(group).values() if isinstance(text, str)]
    return [text.removeprefix("{arch}.") for text in texts if text.startswith("{arch}.") and text.count("{") == 1]


@pytest.mark.parametrize("name", MODELS)
def test_every_other_key_is_refused_by_name(name):
    same = {other for other in MODELS if other.partition("+")[0] == name.partition("+")[0]}
    rows = [{**MODELS[row][2], **keys} for row, keys, _ in APPLIED if row in same]
    applied = {*KEYS, *(key for keys in rows for key in keys)}
    special = {key for row, keys, _ in SPECIAL for key in keys}
    # What any architecture may say of RoPE, and what changes nothing.
    known = {key for _, keys, _ in APPLIED for key in keys if key.startswith("rope.") and "_swa" not in key}
    known |= {"attention.key_length", "attention.value_length"}
    known |= {"vocab_size", "tensor_data_layout", "use_parallel_residual"}
    for key in {*llama_cpp_keys(), "made_up.key"} - applied - special - known:
        with pytest.raises(UsageError, match=re.escape(f".{key}=7")):
            language_model_config(metadata(name, {key: 7}))
