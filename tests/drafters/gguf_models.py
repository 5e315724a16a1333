"""Writes tiny random language models as GGUF files, in the way of llama.cpp's converter."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf_writing import writing
from heads_place import random_network
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

Fields = Mapping[str, Any]  # of a config or a file, whose values are of many types
NUM_TOKENS = 264
SIZES: Fields = {
    "vocab_size": NUM_TOKENS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
}
KEYS: Fields = {
    "embedding_length": 64,
    "feed_forward_length": 96,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "context_length": 128,
    "rope.freq_base": 300.0,
}
RMS, EPS = {"attention.layer_norm_rms_epsilon": 0.01}, {"attention.layer_norm_epsilon": 0.01}
RMS_FIELD, WINDOW = {"rms_norm_eps": 0.01}, {"attention.sliding_window": 6}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
EXPERT_KEYS = {"expert_count": 4, "expert_used_count": 2}
GEMMA = {"query_pre_attn_scalar": 16, "sliding_window": 6, "tie_word_embeddings": True, **RMS_FIELD}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 300.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.625}}
PARTIAL_KEY = {"rope.dimension_count": 10}
# By GGUF's name: transformers' name with its fields, and the keys of the file, beside SIZES and KEYS.
MODELS: Mapping[str, tuple[str, Fields, Fields]] = {
    "gemma2": ("gemma2", GEMMA, {**RMS, **WINDOW, "attention.key_length": 16, "attention.value_length": 16}),
    "gemma3": ("gemma3_text", {**GEMMA, "rope_parameters": GEMMA3_ROPE}, {**RMS, **WINDOW, "attention.key_length": 16}),
    "gpt-oss": ("gpt_oss", {**LOCAL, "sliding_window": 6, **RMS_FIELD},
     {**RMS, **WINDOW, **EXPERT_KEYS, "expert_feed_forward_length": 96, "attention.key_length": 16}),
    "gpt2": ("gpt2", {"layer_norm_epsilon": 0.01, "n_inner": 96, "tie_word_embeddings": True},
     {**EPS, "attention.head_count_kv": 4}),
    "llama": ("llama", RMS_FIELD, RMS),
    "llama+experts": ("mixtral", {**LOCAL, **RMS_FIELD}, {**RMS, **EXPERT_KEYS}),
    "llama+window": ("mistral", {"sliding_window": 6, **RMS_FIELD}, {**RMS, **WINDOW}),
    "minimax-m2": ("minimax_m2", {**LOCAL, **RMS_FIELD, **PARTIAL},
     {**RMS, **EXPERT_KEYS, **PARTIAL_KEY, "expert_gating_func": 2, "expert_feed_forward_length": 96}),
    "nemotron": ("nemotron", {**PARTIAL, "norm_eps": 0.01}, {**EPS, **PARTIAL_KEY}),
    "phi3": ("phi3", {**RMS_FIELD, **PARTIAL}, {**RMS, **PARTIAL_KEY}),
    "qwen2": ("qwen2", RMS_FIELD, RMS),
    "qwen2moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 40, **RMS_FIELD},
     {**RMS, **EXPERT_KEYS, "expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40}),
    "qwen3": ("qwen3", RMS_FIELD, {**RMS, "attention.key_length": 16}),
    "qwen3moe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True, **RMS_FIELD},
     {**RMS, **EXPERT_KEYS, "expert_feed_forward_length": 24}),
    "stablelm": ("stablelm", {**PARTIAL, "layer_norm_eps": 0.01, "num_key_value_heads": 4},
     {**EPS, **PARTIAL_KEY, "attention.head_count_kv": 4}),
    "starcoder2": ("starcoder2", {"norm_epsilon": 0.01}, EPS),
}  # fmt: skip
_EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?")
_BY_ARCHITECTURE = {text: kind for kind, text in gguf.MODEL_ARCH_NAMES.items()}


def make_model(name: str, fields: Fields) -> PreTrainedModel:
    """Make a random model, whose norms and biases are random, too."""
    kind, own, _ = MODELS[name]
    config = AutoConfig.for_model(kind, **{**SIZES, **own, **fields})
    return random_network(0, lambda: AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def write_model(
    path: Path,
    name: str,
    model: PreTrainedModel,
    keys: Fields,
    tensors: Mapping[str, Tensor | None] | None = None,
    tensors_a_part: int = 0,
    tokenizer: Callable[[gguf.GGUFWriter], None] = lambda writer: _write_tokenizer(writer),
) -> None:
    """Write a model's tensors, and further ones; a key or tensor that is None is left out."""
    architecture, values = name.partition("+")[0], {**KEYS, **MODELS[name][2], **keys}
    present = {key: value for key, value in values.items() if value is not None}
    with writing(path, architecture, present, tensors_a_part) as writer:
        tokenizer(writer)
        for stored, tensor in {**dict(converted(architecture, model)), **(tensors or {})}.items():
            if tensor is not None:
                writer.add_tensor(stored, tensor.detach().contiguous().numpy())


def _write_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<|endoftext|>", "a", "b", "ab", *(f"<{number}>" for number in range(4, NUM_TOKENS))])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)


def converted(architecture: str, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors as a file has them."""
    names = gguf.get_tensor_name_map(_BY_ARCHITECTURE[architecture], model.config.num_hidden_layers)
    tied = set(model._tied_weights_keys) if model.config.tie_word_embeddings else set()
    for name, tensor in model.state_dict().items():
        if (experts := _EXPERTS.fullmatch(name)) is not None:
            yield from _experts(architecture, experts, tensor)
        elif name.endswith("e_score_correction_bias"):
            yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", tensor
        elif name not in tied:
            stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
            stored = (
                stored
                if "." in stored.removeprefix("blk.").partition(".")[2] or "blk" not in stored
                else f"{stored}.weight"
            )
            yield stored, _as_stored(architecture, model, stored, tensor)


def _experts(architecture: str, name: re.Match[str], tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    layer, part, bias = name.groups()
    kind = "bias" if bias else "weight"
    tensor = tensor.transpose(1, 2) if architecture == "gpt-oss" and not bias else tensor
    if part == "down":
        yield f"blk.{layer}.ffn_down_exps.{kind}", tensor
        return
    halves = (tensor[:, ::2], tensor[:, 1::2]) if architecture == "gpt-oss" else tensor.chunk(2, dim=1)
    for half, rows in zip(("gate", "up"), halves, strict=True):
        yield f"blk.{layer}.ffn_{half}_exps.{kind}", rows


def _as_stored(architecture: str, model: PreTrainedModel, name: str, tensor: Tensor) -> Tensor:
    match architecture, name.split(".")[-2]:
        case "llama", "attn_q" | "attn_k" as part:
            heads = model.config.num_attention_heads if part == "attn_q" else model.config.num_key_value_heads
            return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
        case "gemma2" | "gemma3" | "nemotron", part if part.endswith("norm") and name.endswith("weight"):
            return tensor + 1
        case "gpt2", "attn_qkv" | "attn_output" | "ffn_up" | "ffn_down" if tensor.ndim == 2:
            return tensor.T
        case "qwen2moe", "ffn_gate_inp_shexp":
            return tensor[0]
    return tensor
