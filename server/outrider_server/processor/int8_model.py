"""int8 targets: models whose matrices are codes, made of a checkpoint once and mapped into memory, never decoded."""

from __future__ import annotations

import shutil
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from outrider_drafters.checkpoints.causal_lm import empty_causal_lm
from outrider_drafters.quantization.codes import ExactInt8Codes, Int8Codes, PackedInt8Codes
from outrider_drafters.quantization.quantize import coded_names, tied_names
from outrider_drafters.quantization.quantized_tensor import QuantizedWeight
from outrider_drafters.readers import target_cache
from outrider_drafters.readers.checkpoint import Checkpoint, join_names
from outrider_drafters.readers.config import read_json
from outrider_proto.errors import UsageError

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".index.json")
_CHECKED = "outrider_checked"
_OWN = ("config.json", target_cache.DIGESTS, target_cache.SOURCE, _CHECKED)  # each directory's own


def int8_dir(source: Path) -> Path:
    """Return the directory of codes made of a model, which is written at the first use. Raises UsageError."""
    checkpoint = Checkpoint(source)
    if checkpoint.holds_codes:
        return source
    return target_cache.write_cached(source, "int8", lambda partial: _write(checkpoint, partial))


def _write(checkpoint: Checkpoint, directory: Path) -> None:
    source = checkpoint.directory
    if "quantization_config" in read_json(source / "config.json"):
        raise UsageError(f"dtype=int8: {source}: its weights are quantized already; leave dtype out")
    model = empty_causal_lm(checkpoint)
    coded_names(model)  # which says what no codes can be
    if missing := sorted(model.state_dict().keys() - tied_names(model) - checkpoint.names):
        raise UsageError(f"dtype=int8: {source}: lacks tensors {join_names(missing)}")
    target_cache.write_weights(directory, source, model, checkpoint.read, torch.int8)
    for path in source.iterdir():
        if path.is_file() and path.name not in _OWN and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, directory / path.name)


def load_int8(directory: Path, attention: str) -> PreTrainedModel:
    """Load the model of a directory of codes, which stay where their files are mapped. Raises UsageError."""
    checkpoint = Checkpoint(directory)
    model = empty_causal_lm(checkpoint, dtype=torch.float32, attn_implementation=attention)
    coded = coded_names(model)
    for name in checkpoint.names:
        place, _, kind = name.rpartition(".")
        tensor = checkpoint.read(name)
        if isinstance(tensor, QuantizedWeight) and isinstance(tensor.coded, Int8Codes):
            tensor = QuantizedWeight(ExactInt8Codes(*tensor.coded.parts))
        elif name in coded:
            raise UsageError(f"dtype=int8: {directory}: {name} has no int8 codes; leave dtype out")
        setattr(model.get_submodule(place), kind, nn.Parameter(tensor, requires_grad=False))
    model.tie_weights()
    if missing := sorted(name for name, parameter in model.named_parameters() if parameter.is_meta):
        raise UsageError(f"{directory}: lacks tensors {join_names(missing)}")
    if (directory / "generation_config.json").is_file():  # which names more ends of text than config.json
        model.generation_config = GenerationConfig.from_pretrained(str(directory))
    return model


def was_checked(directory: Path | None, context: int) -> bool:
    """Return whether these versions have compared passes over codes of the cache with the model's own."""
    try:
        return directory is not None and (directory / _CHECKED).read_text() == _check_key(context)
    except OSError:
        return False


def note_checked(directory: Path | None, context: int) -> None:
    """Remember that they have, in a directory of the cache."""
    if directory is not None and target_cache.is_cached(directory):
        with suppress(OSError):  # a full disk: then they do so again
            (directory / _CHECKED).write_text(_check_key(context))


def _check_key(context: int) -> str:
    return " ".join([str(context), *map(version, ("outrider", "torch", "transformers"))])


def round_weights(model: PreTrainedModel) -> None:
    """Round the matrices of a model in memory to codes. Raises UsageError for one that cannot be int8."""
    for name in coded_names(model):
        layer = model.get_submodule(name.removesuffix(".weight"))
        codes = ExactInt8Codes.rounded(layer.get_parameter("weight").detach())
        layer.weight = nn.Parameter(QuantizedWeight(codes), requires_grad=False)
    model.tie_weights()


def pack_codes(model: PreTrainedModel) -> None:
    """Let all products of an int8 model be packed ones."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and isinstance(module.weight, QuantizedWeight):
            packed = PackedInt8Codes(*module.weight.coded.parts)
            module.weight = nn.Parameter(QuantizedWeight(packed), requires_grad=False)
