"""Read config.json as it stands: transformers would drop or rename keys of files that it did not write."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider_proto import files
from outrider_proto.errors import UsageError

# Settings of Gemma-4's assistants, which stand beside the text part of their config.
BESIDE_TEXT = ("backbone_hidden_size", "use_ordered_embeddings", "num_centroids", "centroid_intermediate_top_k")
Config = Mapping[str, Any]  # raw JSON: a value's type is checked where it is used

# speculators' keys: the kind of a head, and the part of its config that is a model's of Hugging Face.
KIND, NESTED = "speculators_model_type", "transformer_layer_config"
SPECULATORS_KEYS = (KIND, "speculators_version", "speculators_config", NESTED)
SLIDING, FULL = "sliding_attention", "full_attention"
_MAX_SIZE, _MAX_NUMBER = 2**48, 1e38
MAX_WINDOW_LAYERS = 28  # Qwen3's default: layers from this one on slide, where any do


def read_json(path: Path, max_bytes: int = files.MAX_BYTES) -> Config:
    """Read the object in a JSON file. Raises UsageError."""
    value = files.read_json(path, max_bytes)
    if not isinstance(value, dict):
        raise UsageError(f"{path}: need a JSON object")
    return value


def read_config(directory: Path) -> Config:
    """Read config.json of a model directory; of a multimodal model its text part. Raises UsageError."""
    if directory.is_file():
        raise UsageError(f"{directory}: a file: need a model directory")
    if not (directory / "config.json").is_file():
        raise UsageError(f"{directory}: not a model directory, it has no config.json{_instead(directory)}")
    config = read_json(directory / "config.json")
    if not isinstance(names := config.get("architectures") or [], list):
        raise UsageError(f"{directory}: config.json: architectures={names}: need a list")
    text = config.get("text_config")
    return {**text, **{key: config[key] for key in BESIDE_TEXT if key in config}} if isinstance(text, dict) else config


def _instead(directory: Path) -> str:
    """Return what a directory without config.json is, and what to do with it."""
    if (adapter := directory / "adapter_config.json").is_file():
        base = read_json(adapter).get("base_model_name_or_path")
        return f": an adapter (PEFT) of {base}; merge it into that model, and give the result"
    files = sorted(directory.glob("*.gguf"))
    return f"; name its file {files[0]}" if files else ""


def flattened(config: Config) -> Config:
    """Return a config of speculators' with the model's part beside the rest; any other as it is."""
    nested = config.get(NESTED)
    if not isinstance(nested, Mapping):
        return config
    config = {**config, **nested, "architectures": config.get("architectures")}
    parameters = config.get("rope_parameters")
    # speculators' code rotates all layers as sliding ones where the target's differ.
    if isinstance(parameters, Mapping) and SLIDING in parameters:
        config["rope_parameters"] = parameters[SLIDING]
    return config


def config_int(config: Config, key: str, default: int | None = None) -> int:
    """Return a whole number above 0; a missing or null one takes the default. Raises UsageError."""
    # A null counts as missing: published configurations write both.
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"config.json: {key}={value}: need a whole number of at least 1")
    if value > _MAX_SIZE:
        raise UsageError(f"config.json: {key}={str(value)[:24]}: no model has so many")
    return value


def config_number(config: Config, key: str, default: float | None = None) -> float:
    """Return a positive number; a missing or null one, or 0, takes the default. Raises UsageError."""
    value = config.get(key) or default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _MAX_NUMBER:
        raise UsageError(f"config.json: {key}={value}: need a positive number")
    return float(value)


def config_part(config: Config, key: str) -> Config:
    """Return an object in a config, empty where it is missing or null. Raises UsageError."""
    part = config.get(key) or {}
    if not isinstance(part, Mapping):
        raise UsageError(f"config.json: {key}={part!r}: need an object")
    return part


def rope_theta(config: Config) -> float:
    """Return RoPE's base: `rope_theta` (transformers 4) or `rope_parameters.rope_theta` (5), by default 10000."""
    return config_number(config, "rope_theta", config_number(config_part(config, "rope_parameters"), "rope_theta", 1e4))


def rms_norm_eps(config: Config) -> float:
    """Return the norms' eps, by default Llama's 1e-6."""
    return config_number(config, "rms_norm_eps", 1e-6)


def is_sliding(config: Config, layer: int) -> bool:
    """Return whether a layer is one with a sliding window. Raises UsageError for another kind of layer."""
    types = config.get("layer_types")
    if not isinstance(types, list):
        first = config_int(config, "max_window_layers", MAX_WINDOW_LAYERS)
        return bool(config.get("use_sliding_window")) and layer >= first
    if layer >= len(types):
        raise UsageError(f"config.json: layer_types has {len(types)} entries: layer {layer} has none")
    if types[layer] not in (SLIDING, FULL):
        raise UsageError(f"config.json: layer_types: layer {layer} is {types[layer]}: need {FULL} or {SLIDING}")
    return bool(types[layer] == SLIDING)
