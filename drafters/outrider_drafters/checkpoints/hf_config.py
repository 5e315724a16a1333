"""The config.json of a causal language model as transformers gets it: what describes the network, and nothing else.

transformers sets every key of the file on its configuration, those too that name code, kernels of a hub, another file
or a label for each of 10**9 classes. So only keys of a list reach it, those that its class declares, and no number that
it would make a list of is absurd.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from outrider_drafters.readers.config import Config, read_config, read_json
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Keys that classes read beside the fields they declare, for files of older versions and of other models.
_UNDECLARED = frozenset({
    "compress_rate_csa", "compress_rate_hca", "compress_ratios", "dense_intermediate_size", "dense_mlp_idx",
    "first_k_dense_replace", "full_attention_interval", "global_attn_every_n_layers", "global_head_dim",
    "global_rope_theta", "head_dim", "hybrid_override_pattern", "index_skip_topk_offset", "index_topk_freq",
    "index_topk_pattern", "intermediate_size", "layer_types", "linear_attn_config", "local_rope_theta",
    "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_expand", "mamba_n_groups", "model_type",
    "moe_layer_freq", "moe_shared_expert_intermediate_size", "mtp_hybrid_override_pattern", "n_embed", "num_experts",
    "num_global_key_value_heads", "num_hash_layers", "num_local_experts", "num_nextn_predict_layers",
    "original_max_position_embeddings", "partial_rotary_factor", "per_layer_config", "qk_rope_head_dim",
    "rope_local_base_freq", "rope_parameters", "rope_scaling", "rope_theta", "rotary_dim", "rotary_emb_base",
    "rotary_pct", "router_bias", "sliding_window", "sliding_window_pattern", "sliding_window_size",
    "sparse_attention_config", "swa_qk_rope_head_dim", "swa_rope_theta", "tie_embedding", "tie_word_embeddings",
    "torch_dtype", "use_dsa", "use_sliding_window",
})  # fmt: skip
# Declared by classes, and yet nothing of the network's arithmetic.
_NEVER = frozenset({
    "attn_impl", "chunkwise_kernel", "id2label", "init_device", "label2id", "output_hidden_states", "problem_type",
    "return_dict", "sequence_kernel", "step_kernel", "transformers_version", "use_mamba_kernels",
})  # fmt: skip
_QUANTIZATION = "quantization_config"
_PER_LAYER = "per_layer_config"
MAX_LAYERS = 10_000
_MAX_NUMBER = 2**48


def causal_config(directory: Path, *, quantized: bool = False) -> PreTrainedConfig:
    """Read the config.json of a causal language model; its quantization too, if so. Raises UsageError."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    read_config(directory)  # which says what a directory without one is
    settings = read_json(directory / "config.json")
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise UsageError(f"{directory}: config.json: model_type={kind}: no architecture that transformers knows")
    try:
        kept = _described(settings, CONFIG_MAPPING[kind])
        if quantized and isinstance(settings.get(_QUANTIZATION), Mapping):
            kept[_QUANTIZATION] = settings[_QUANTIZATION]
        # From a file, as transformers corrects some models' configurations only there.
        with TemporaryDirectory() as place:
            (Path(place) / "config.json").write_text(json.dumps(kept))
            config: PreTrainedConfig = AutoConfig.from_pretrained(place, trust_remote_code=False)
    except UsageError as error:
        raise UsageError(f"{directory}: {error}") from error
    except Exception as error:  # values of a wrong type fail in as many ways as there are classes
        raise UsageError(f"{directory}: config.json: transformers cannot read it: {explained(error)}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(f"{directory}: model_type={kind}: not a causal language model of transformers'")
    config._name_or_path = str(directory)
    return config


def explained(error: Exception) -> str:
    """Return the error's name and its first line; transformers' messages go over pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = " ".join(lines[:2]) if lines and lines[0].endswith(":") else next(iter(lines), "")
    return f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__


def _described(settings: Config, kind: Any) -> dict[str, Any]:  # Any: a class of transformers'; raw JSON
    """Return the settings that describe a network of that class."""
    # Up to transformers 5.3 configurations are plain classes.
    own = [field.name for field in fields(kind)] if is_dataclass(kind) else signature(kind).parameters
    declared = {*own, *kind.attribute_map, *kind.sub_configs}
    kept = {key: value for key, value in settings.items() if key in (declared | _UNDECLARED) - _NEVER}
    for key, value in kept.items():
        _check_numbers(key, value)
    for key, part in kind.sub_configs.items():
        if isinstance(kept.get(key), Mapping):
            kept[key] = _described(kept[key], _class_of_part(part, kept[key]))
    if isinstance(layers := kept.get(_PER_LAYER), Mapping):
        kept[_PER_LAYER] = {layer: _described(own, kind) for layer, own in layers.items() if isinstance(own, Mapping)}
    for key in ("dtype", "torch_dtype"):
        if kept.get(key) is not None:
            kept[key] = _dtype_name(key, kept[key])
    return kept


def _class_of_part(part: Any, settings: Config) -> Any:  # Any: classes of transformers'
    from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

    if part is not AutoConfig:
        return part
    kind = settings.get("model_type")
    return CONFIG_MAPPING[kind] if isinstance(kind, str) and kind in CONFIG_MAPPING else PreTrainedConfig


def _check_numbers(key: str, value: object) -> None:
    """Raise UsageError for a number that no model has, here or further inside."""
    match value:
        case bool():
            pass
        case int() if abs(value) > (MAX_LAYERS if "layer" in key or key == "attention_types" else _MAX_NUMBER):
            raise UsageError(f"config.json: {key}={str(value)[:24]}: no model has so many")
        case list():
            for item in value:
                _check_numbers(key, item)
        case Mapping():
            for name, item in value.items():
                _check_numbers(name, item)


def _dtype_name(key: str, value: object) -> str:
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    # transformers takes any attribute of torch by that name.
    if not isinstance(getattr(torch, name, None), torch.dtype):
        raise UsageError(f"config.json: {key}={value}: need the name of a type, such as bfloat16")
    return name
