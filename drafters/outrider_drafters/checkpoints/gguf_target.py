"""Language models in GGUF files: dequantized once, into a Hugging Face directory in the user's cache folder."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider_drafters.checkpoints.eagle3_gguf import unpermute_rows
from outrider_drafters.checkpoints.gguf_config import (
    HEAD,
    ROPE_TENSORS,
    language_model,
    language_model_config,
)
from outrider_drafters.checkpoints.gguf_tokenizer import write_tokenizer
from outrider_drafters.quantization.quantize import dtype_name, tied_names
from outrider_drafters.readers.checkpoint import join_names
from outrider_drafters.readers.gguf_file import GgufFile
from outrider_drafters.readers.target_cache import cached_dir, source_files, write_cached, write_weights
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from gguf import TensorNameMap
    from transformers import PreTrainedModel

_FLOAT32_PARAMETERS = 2**30  # a larger model becomes bfloat16, which takes half the disk, unless a type is asked for
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # the first that is there serves whoever asks for none
_EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?")
_ROUTING = re.compile(r"model\.layers\.(\d+)\.mlp\.e_score_correction_bias")
_CONV1D = re.compile(r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight")  # GPT-2's, [in, out]


def dequantized_dir(path: Path, dtype: torch.dtype | None = None) -> Path:
    """Return the directory made of a GGUF file, and make it at the first use of that file. Raises UsageError.

    Weights are of `dtype`; None: of any that they have been made of before, else what suits the model's size.
    """
    source = source_files(path)[0]
    if dtype is None:
        made = (each for each in _DTYPES if cached_dir(source, dtype_name(each)).is_dir())
        dtype = next(made, None) or suitable_dtype(GgufFile.read(path))
    return write_cached(source, dtype_name(dtype), lambda partial: write_target(path, partial, dtype))


def num_weights(file: GgufFile) -> int:
    """Return how many numbers its tensors hold together."""
    return sum(math.prod(file.tensors.shape(name)) for name in file.tensors)


def suitable_dtype(file: GgufFile) -> torch.dtype:
    """Return the type that the weights of a file get where none is asked for."""
    return torch.float32 if num_weights(file) < _FLOAT32_PARAMETERS else torch.bfloat16


def write_target(path: Path, directory: Path, dtype: torch.dtype | None = None) -> None:
    """Write what a GGUF file holds to a new directory. Raises UsageError."""
    file = GgufFile.read(path)
    model = _empty_model(file)
    sources, empty = _sources(file, model), model.state_dict()

    def read(name: str) -> Tensor:
        return _converted(file, model, sources[name], tuple(empty[name].shape))

    write_weights(directory, file.path, model, read, dtype or suitable_dtype(file))
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    write_tokenizer(file, directory)


def _empty_model(file: GgufFile) -> PreTrainedModel:
    """Make the model that the metadata describe, without weights. Raises UsageError."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise UsageError(f"{file.path}: GGUF targets need transformers: pip install 'outrider[gguf]'") from error
    kind = language_model(file).model_type
    try:
        fields = language_model_config(file)
        # Before so many are made.
        if (layers := fields["num_hidden_layers"]) > len(file.tensors):
            raise UsageError(f"{file.path}: lacks tensors: has {len(file.tensors)} for {layers} layers")
        config = AutoConfig.for_model(kind, **fields)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call] # transformers
    except UsageError:
        raise
    except Exception as error:  # numbers of the wrong type or size fail in many ways
        words = " ".join(str(error).split())
        raise UsageError(f"{file.path}: transformers makes no {kind} of its metadata ({words})") from error
    return model


def _sources(file: GgufFile, model: PreTrainedModel) -> dict[str, list[str]]:
    """Return the stored tensors that each of the model's is made of. Raises UsageError for missing and unknown ones."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(kind for kind, text in MODEL_ARCH_NAMES.items() if text == file.architecture)
    names = get_tensor_name_map(kind, model.config.num_hidden_layers)
    tied = tied_names(model)
    sources = {name: _stored_names(file, names, name) for name in model.state_dict() if name not in tied}
    used = {each for stored in sources.values() for each in stored}
    known = used | ROPE_TENSORS | ({HEAD} if tied else set())
    for trouble, wrong in (("lacks", used - set(file.tensors)), ("holds unknown", set(file.tensors) - known)):
        if wrong:
            raise UsageError(f"{file.path}: {trouble} tensors {join_names(sorted(wrong))}")
    return sources


def _stored_names(file: GgufFile, names: TensorNameMap, name: str) -> list[str]:
    if (experts := _EXPERTS.fullmatch(name)) is not None:
        layer, parts, bias = experts.groups()
        return [f"blk.{layer}.ffn_{part}_exps.{'bias' if bias else 'weight'}" for part in parts.split("_")]
    if (routing := _ROUTING.fullmatch(name)) is not None:
        return [f"blk.{routing[1]}.exp_probs_b.bias"]
    stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if stored is None:
        raise UsageError(f"{file.path}: a {file.architecture} has no tensor for {name}")
    return [stored if stored.endswith((".weight", ".bias")) else f"{stored}.weight"]


def _converted(file: GgufFile, model: PreTrainedModel, sources: list[str], shape: tuple[int, ...]) -> Tensor:
    """Dequantize a tensor and undo what llama.cpp's converter did to it. Raises UsageError for another shape."""
    first, tensor = sources[0], file.tensors[sources[0]]
    layout, config = language_model(file).layout, model.config
    if "_exps." in first:
        tensor = _experts([tensor, *(file.tensors[name] for name in sources[1:])], layout == "experts interleaved")
    elif layout == "halves interleaved" and ".attn_q." in first:
        tensor = unpermute_rows(file, first, tensor, config.num_attention_heads)
    elif layout == "halves interleaved" and ".attn_k." in first:
        tensor = unpermute_rows(file, first, tensor, config.num_key_value_heads)
    elif layout == "norms plus one" and first.endswith("norm.weight"):
        tensor = tensor - 1
    elif layout == "transposed" and _CONV1D.fullmatch(first):
        tensor = tensor.T
    tensor = tensor[None] if tensor.ndim == 1 and len(shape) == 2 else tensor  # a gate's single row
    if tensor.shape != shape:
        raise UsageError(f"{file.path}: tensor {first} has shape {list(tensor.shape)}: its metadata need {list(shape)}")
    return tensor


def _experts(parts: list[Tensor], interleaved: bool) -> Tensor:
    """Join the gates and inputs of all experts, [experts, out, in] or their biases [experts, out]."""
    if not interleaved:
        return torch.cat(parts, dim=1)
    joined = torch.stack(parts, dim=2).flatten(1, 2)
    return joined.transpose(1, 2) if joined.ndim == 3 else joined
