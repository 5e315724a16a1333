"""The config.json of a language model in GGUF: which keys become which fields, and what is refused by name.

A key of the architecture is applied, changes nothing, has the one value that its model implies, or is refused: with
what llama.cpp reads and we pass over, the file would become another model without a word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from outrider_drafters.blocks.rope import RopeScaling, inverse_frequencies
from outrider_drafters.checkpoints.eagle3_gguf import ROPE_FREQS, gguf_rope_scaling
from outrider_drafters.checkpoints.hf_config import MAX_LAYERS
from outrider_drafters.readers.config import FULL, SLIDING, Config
from outrider_drafters.readers.gguf_file import GgufFile
from outrider_proto.errors import UsageError

Fields = dict[str, Any]  # of config.json, whose values are of many types
Layout = Literal["as it is", "halves interleaved", "norms plus one", "transposed", "experts interleaved"]

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = frozenset({ROPE_FREQS, LONG, SHORT})
_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_SWA_BASE = "rope.freq_base_swa"
_COMMON = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
}
_NORM_EPS = "attention.layer_norm_epsilon"
_RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
_WINDOWED = _RMS | {_WINDOW: "sliding_window"}
_CAPS = {f"{kind}_logit_softcapping": f"{kind}_logit_softcapping" for kind in ("attn", "final")}
_LOCAL_EXPERTS = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
_EXPERTS = {
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_used_count": "num_experts_per_tok",
    "expert_weights_norm": "norm_topk_prob",
}
_REQUIRED = ("attention.head_count", "block_count", "context_length", "embedding_length")
# Applied below, one by one.
_SCALING_TYPE = "rope.scaling.type"
_SCALINGS = ("attn_factor", "factor", "original_context_length", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")
_ROPE = {"attention.value_length", "rope.dimension_count", "rope.freq_base", "rope.scale_linear", _SCALING_TYPE}
_ROPE |= {f"rope.scaling.{key}" for key in _SCALINGS}
_HARMLESS = {
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "use_parallel_residual",  # llama.cpp goes by the tensors, as we do, for its converter writes true by default
}
# Keys with the only value that is understood; without one here, a key that is not applied has to be off.
_IMPLIED = {
    "attention.causal": True,
    "expert_gating_func": 1,  # softmax
    "expert_weights_scale": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model as llama.cpp converts it; of `window_period` layers the last attends to the whole text."""

    model_type: str
    keys: Mapping[str, str]  # fields by key, beside those that all have
    layout: Layout = "as it is"
    fixed: Mapping[str, object] = field(default_factory=dict)  # fields that no file names
    implied: Mapping[str, object] = field(default_factory=dict)
    window_period: int = 0
    rotates_a_part: bool = False


_MISTRAL = Architecture("mistral", _WINDOWED, "halves interleaved")
_MIXTRAL = Architecture("mixtral", _WINDOWED | _LOCAL_EXPERTS, "halves interleaved")
LANGUAGE_MODELS: Mapping[str, Architecture] = {
    "gemma2": Architecture("gemma2", _WINDOWED | _CAPS, "norms plus one", window_period=2),
    "gemma3": Architecture("gemma3_text", _WINDOWED | _CAPS, "norms plus one", window_period=6),
    "gpt-oss": Architecture(
        "gpt_oss",
        _WINDOWED | _LOCAL_EXPERTS | {"expert_feed_forward_length": "intermediate_size"},
        "experts interleaved",
        implied={"expert_gating_func": 3},  # softmax over the chosen
        window_period=2,
    ),
    "gpt2": Architecture("gpt2", {_NORM_EPS: "layer_norm_epsilon", "feed_forward_length": "n_inner"}, "transposed"),
    "llama": Architecture("llama", _RMS, "halves interleaved"),
    "minimax-m2": Architecture(
        "minimax_m2",
        _RMS | _LOCAL_EXPERTS | {"expert_feed_forward_length": "intermediate_size"},
        implied={"expert_gating_func": 2},  # sigmoid
        rotates_a_part=True,
    ),
    "nemotron": Architecture("nemotron", {_NORM_EPS: "norm_eps"}, "norms plus one", rotates_a_part=True),
    "phi3": Architecture("phi3", _WINDOWED, rotates_a_part=True),
    "qwen2": Architecture("qwen2", _RMS),
    "qwen2moe": Architecture(
        "qwen2_moe", _RMS | _EXPERTS | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
    ),
    "qwen3": Architecture("qwen3", _RMS),
    "qwen3moe": Architecture("qwen3_moe", _RMS | _EXPERTS, fixed={"norm_topk_prob": True}),
    "stablelm": Architecture("stablelm", {_NORM_EPS: "layer_norm_eps"}, rotates_a_part=True),
    "starcoder2": Architecture("starcoder2", {_NORM_EPS: "norm_epsilon", _WINDOW: "sliding_window"}),
}


def language_model(file: GgufFile) -> Architecture:
    """Return the architecture of a file. Raises UsageError for one that is none of LANGUAGE_MODELS."""
    file.need_architecture(tuple(LANGUAGE_MODELS))
    if file.architecture == "llama" and file.of_architecture("expert_count"):
        return _MIXTRAL
    if file.architecture == "llama" and file.of_architecture(_WINDOW):
        return _MISTRAL
    return LANGUAGE_MODELS[file.architecture]


def language_model_config(file: GgufFile) -> Fields:
    """Translate a file's metadata. Raises UsageError for a key that is missing, and one that would be passed over."""
    architecture = language_model(file)
    keys = {**_COMMON, **architecture.keys}
    _refuse_others(file, architecture, set(keys))
    fields: Fields = {"num_key_value_heads": _one(file, "attention.head_count"), **architecture.fixed}
    fields |= {name: value for key, name in keys.items() if (value := _one(file, key)) is not None}
    width = fields.setdefault("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    fields.setdefault("vocab_size", file.tensors.shape(EMBEDDING)[0] if EMBEDDING in file.tensors else None)
    if (values := file.of_architecture("attention.value_length")) not in (None, width):
        raise _refused(file, "attention.value_length", values, f"need {width}, the width of a key")
    fields["rope_parameters"] = _rope(file, width, architecture, fields["max_position_embeddings"])
    fields |= {f"{end}_token_id": file.values.get(f"tokenizer.ggml.{end}_token_id") for end in ("bos", "eos")}
    fields["pad_token_id"] = file.values.get("tokenizer.ggml.padding_token_id")
    fields["tie_word_embeddings"] = HEAD not in file.tensors or file.tensors.repeats(HEAD, EMBEDDING)
    return fields | _by_tensors(file, architecture) | _windows(file, architecture, fields) | _gemma(file, fields)


def _refuse_others(file: GgufFile, architecture: Architecture, applied: set[str]) -> None:
    applied |= _ROPE | _HARMLESS | ({_PATTERN} if architecture.window_period else set())
    applied |= {_SWA_BASE} if file.architecture == "gemma3" else set()
    # llama.cpp's converter writes Nemotron's epsilon under both names.
    applied |= set(_RMS) if file.architecture == "nemotron" else set()
    implied = {**_IMPLIED, **architecture.implied}
    for full, value in file.values.items():
        key = full.removeprefix(f"{file.architecture}.")
        if key == full or key in applied or (key in implied and value == implied[key]):
            continue
        # Off in a file of llama.cpp's, as long as no model implies that it is on.
        if key in implied or value not in (0, "", []):
            what = f"need {implied[key]}" if key in implied else f"a {file.architecture} with it is not understood"
            raise _refused(file, key, value, what)


def _one(file: GgufFile, key: str) -> Any:  # Any: as the file's values
    """Return a value of the architecture, of a list with one for each layer that which all have. Raises UsageError."""
    value = file.of_architecture(key)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise _refused(file, key, value, "need the same for all layers")
        value = value[0]
    if value is None and (key in _REQUIRED or key.endswith("epsilon")):
        raise UsageError(f"{file.path}: lacks {file.architecture}.{key}")
    if key in _COMMON and value is not None and (type(value) is not int or value < 1):
        raise _refused(file, key, value, "need a whole number of at least 1")
    if key == "block_count" and value > MAX_LAYERS:
        raise _refused(file, key, value, f"need {MAX_LAYERS} at most")
    return value


def _rope(file: GgufFile, width: int, architecture: Architecture, context: int) -> Fields:
    for key in _ROPE - {_SCALING_TYPE} | {_SWA_BASE}:
        if not isinstance(value := file.of_architecture(key) or 0, (int, float)) or not 0 <= value < math.inf:
            raise _refused(file, key, value, "need a number of at least 0")
    rope: Fields = {"rope_type": "default", "rope_theta": file.of_architecture("rope.freq_base") or 10000.0}
    rotated = file.of_architecture("rope.dimension_count") or width
    if rotated != width and not architecture.rotates_a_part:
        raise _refused(file, "rope.dimension_count", rotated, f"need {width}, the width of a head")
    if architecture.rotates_a_part:
        share = rotated / width
        # transformers rounds the product down, which may fall short of the number that the share was made from.
        rope["partial_rotary_factor"] = share if int(width * share) == rotated else math.nextafter(share, 1)
    rope |= _scaling(file, rope["rope_theta"], rotated, context)
    if file.architecture != "gemma3":
        return rope
    local = {"rope_type": "default", "rope_theta": file.of_architecture(_SWA_BASE) or 10000.0}
    return {FULL: rope, SLIDING: local}


def _scaling(file: GgufFile, theta: float, rotated: int, context: int) -> Config:
    if LONG in file.tensors or SHORT in file.tensors:
        return _long_rope(file, context)
    scaling = {**(gguf_rope_scaling(file) or {})}
    if (kind := scaling.get("rope_type")) == "divisors":
        return _divided(file, scaling["divisors"], theta, rotated, context)
    if kind not in (None, "linear", "yarn") or (kind and file.architecture == "phi3"):
        raise _refused(file, _SCALING_TYPE, kind, f"a {file.architecture} with it is not understood")
    if kind == "yarn":
        scaling.setdefault("original_max_position_embeddings", context)
        # The one model whose ramp is not rounded to whole pairs, which no key says.
        scaling["truncate"] = file.architecture != "gpt-oss"
    elif (times := file.of_architecture("rope.scaling.attn_factor")) not in (None, 0, 1):
        raise _refused(file, "rope.scaling.attn_factor", times, "need rope.scaling.type=yarn beside it")
    return scaling


def _long_rope(file: GgufFile, context: int) -> Fields:
    if missing := {LONG, SHORT} - set(file.tensors):
        raise UsageError(f"{file.path}: lacks tensor {missing.pop()}")
    original = file.of_architecture("rope.scaling.original_context_length") or context
    return {
        "rope_type": "longrope",
        "long_factor": file.tensors[LONG].flatten().tolist(),
        "short_factor": file.tensors[SHORT].flatten().tolist(),
        "attention_factor": file.of_architecture("rope.scaling.attn_factor") or 1.0,
        "original_max_position_embeddings": original,
        "factor": context / original,
    }


def _divided(file: GgufFile, divisors: list[float], theta: float, rotated: int, context: int) -> Config:
    """Return Llama 3's scaling if it has these divisors, else longrope's, whose divisors are any."""
    if len(divisors) != rotated // 2 or not all(0 < divisor < math.inf for divisor in divisors):
        raise UsageError(f"{file.path}: tensor {ROPE_FREQS}: need {rotated // 2} divisors, all positive")
    # The numbers of all Llamas, of which files hold only what follows from them.
    llama3 = RopeScaling("llama3", max(divisors), original_context=8192.0, slow=1.0, fast=4.0)
    plain, scaled = (inverse_frequencies(rotated, theta, each, torch.device("cpu")) for each in (None, llama3))
    if torch.allclose(torch.tensor(divisors), plain / scaled, rtol=1e-4, atol=0.0):
        return llama3.as_config()
    same = {"long_factor": divisors, "short_factor": divisors, "attention_factor": 1.0, "factor": 1.0}
    return {"rope_type": "longrope", **same, "original_max_position_embeddings": context}


def _by_tensors(file: GgufFile, architecture: Architecture) -> Fields:
    bias = "blk.0.attn_q.bias" in file.tensors
    match architecture.model_type:
        case "llama" | "nemotron" | "qwen3" | "qwen3_moe":
            return {"attention_bias": bias, "mlp_bias": "blk.0.ffn_up.bias" in file.tensors}
        case "stablelm":
            return {"use_qkv_bias": bias, "use_parallel_residual": "blk.0.ffn_norm.weight" not in file.tensors}
        case "phi3":
            original = file.of_architecture("rope.scaling.original_context_length")
            return {"original_max_position_embeddings": original} if original else {}
    return {}


def _windows(file: GgufFile, architecture: Architecture, fields: Fields) -> Fields:
    if not architecture.window_period:
        return {"sliding_window": fields.get("sliding_window") or None} if _WINDOW in architecture.keys else {}
    layers = fields["num_hidden_layers"]
    pattern = file.of_architecture(_PATTERN)
    if not isinstance(pattern, list):
        period = architecture.window_period if pattern is None else pattern
        pattern = [not period or layer % period < period - 1 for layer in range(layers)]
    if len(pattern) != layers:
        raise _refused(file, _PATTERN, pattern, f"need one for each of {layers} layers")
    if file.of_architecture(_WINDOW) == 0 or (file.architecture == "gemma3" and file.of_architecture(_WINDOW) is None):
        pattern = [False] * layers
    return {"layer_types": [SLIDING if slides else FULL for slides in pattern]}


def _gemma(file: GgufFile, fields: Fields) -> Fields:
    # Not in the file: llama.cpp knows Gemma's 27B by its layers, whose queries are scaled by another width.
    if file.architecture not in ("gemma2", "gemma3"):
        return {}
    largest = fields["num_hidden_layers"] == {"gemma2": 46, "gemma3": 62}[file.architecture]
    width = fields["hidden_size"] // fields["num_attention_heads"] if largest else fields["head_dim"]
    uncapped = {name: None for key, name in _CAPS.items() if file.of_architecture(key) == 0}
    return {"query_pre_attn_scalar": width, **uncapped}


def _refused(file: GgufFile, key: str, value: object, need: str) -> UsageError:
    return UsageError(f"{file.path}: {file.architecture}.{key}={value}: {need}")
