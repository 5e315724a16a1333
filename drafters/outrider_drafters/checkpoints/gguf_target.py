"""Language models in GGUF files: dequantized once, into a Hugging Face directory in the user's cache folder.

int8 models of other directories are kept there, too.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider_drafters.checkpoints.eagle3_gguf import unpermute_rows
from outrider_drafters.checkpoints.gguf_config import (
    EMBEDDING,
    HEAD,
    ROPE_TENSORS,
    language_model,
    language_model_config,
)
from outrider_drafters.checkpoints.gguf_tokenizer import write_tokenizer
from outrider_drafters.quantization.quantize import coded_names, int8_tensors
from outrider_drafters.readers.checkpoint import INDEX, WRITE_ERRORS, join_names, sampled_rows, write_exact_rows
from outrider_drafters.readers.config import read_json
from outrider_drafters.readers.digest import weights_digest
from outrider_drafters.readers.gguf_file import GgufFile
from outrider_drafters.readers.target_cache import cached_dir, source_files, write_cached, write_once
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from gguf import TensorNameMap
    from transformers import PreTrainedModel

Report = Callable[[float], None]
_logger = logging.getLogger(__name__)
_FLOAT32_PARAMETERS = 2**30  # a larger model becomes bfloat16, which takes half the disk, unless a type is asked for
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # the first that is there serves whoever asks for none
DIGESTS = "outrider_digests.json"  # of the weights in each file
_SHARD_BYTES = 2**29  # of tensors in memory at a time
_SPARE_BYTES = 64 * 2**20  # for the tokenizer, and for a disk that is never quite empty
_TENSORS_SHARE = 0.9  # of the work; the rest is the tokenizer's
_EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?")
_ROUTING = re.compile(r"model\.layers\.(\d+)\.mlp\.e_score_correction_bias")
_CONV1D = re.compile(r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight")  # GPT-2's, [in, out]


def dequantized_dir(path: Path, dtype: torch.dtype | None = None) -> Path:
    """Return the directory made of a GGUF file, and make it at the first use of that file. Raises UsageError.

    Weights are of `dtype`; None: of any that they have been made of before, else what suits the model's size.
    """
    source = source_files(path)[0]
    if dtype is None:
        made = [each for each in _DTYPES if cached_dir(source, _name(each)).is_dir()]
        dtype = made[0] if made else suitable_dtype(GgufFile.read(path))
    return write_cached(source, _name(dtype), lambda partial: _write(GgufFile.read(path), partial, dtype, None))


def dequantize_target(
    path: Path, directory: Path, report: Report | None = None, dtype: torch.dtype | None = None
) -> None:
    """Write the model, tokenizer and chat template of a GGUF file to `directory`, whole or not at all.

    `report` gets the share that is done; without it there is a bar on a terminal. Nothing happens where the directory
    exists. Weights become `dtype`; None: float32, from 2**30 parameters on bfloat16. Raises UsageError for a file that
    is broken, that lacks tensors or has unknown ones, whose metadata we would pass over, or too large for the disk.
    """

    def write(partial: Path) -> None:
        file = GgufFile.read(path)
        _write(file, partial, dtype or suitable_dtype(file), report)

    write_once(directory, write)


def num_weights(file: GgufFile) -> int:
    """Return how many numbers its tensors hold together."""
    return sum(math.prod(file.tensors.shape(name)) for name in file.tensors)


def suitable_dtype(file: GgufFile) -> torch.dtype:
    """Return the type that the weights of a file get where none is asked for."""
    return torch.float32 if num_weights(file) < _FLOAT32_PARAMETERS else torch.bfloat16


def _write(file: GgufFile, directory: Path, dtype: torch.dtype, report: Report | None) -> None:
    from tqdm import tqdm  # type: ignore[import-untyped] # has no annotations

    count = num_weights(file)
    model = _empty_model(file)
    _logger.info("%s: dequantizing into %s, once", file.path, directory.parent)
    make_model_dir(directory, file.path, model, dtype, count)
    # disable=None: no bar unless on a terminal.
    with tqdm(total=count, desc=file.path.name, unit="", unit_scale=True, disable=report and True) as bar:

        def advance(weights: int) -> None:
            bar.update(weights)
            if report is not None:
                report(_TENSORS_SHARE * bar.n / count)

        _write_tensors(file, model, directory, dtype, advance)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    write_tokenizer(file, directory)
    if report is not None:
        report(1.0)


def make_model_dir(directory: Path, source: Path, model: PreTrainedModel, dtype: torch.dtype, count: int) -> None:
    """Make a directory for `count` weights, with the model's config. Raises UsageError where the disk is too small."""
    needed, free = count * dtype.itemsize + _SPARE_BYTES, shutil.disk_usage(directory.parent).free
    if free < needed:
        raise UsageError(
            f"{source}: as {_name(dtype)} it takes {needed:,} bytes; {directory.parent} has {free:,} left"
            " (`outrider-models info` lists what you may remove)"
        )
    directory.mkdir()
    model.config.architectures = [type(model).__name__]
    model.config.dtype = dtype if dtype.is_floating_point else torch.float32
    model.config.save_pretrained(directory)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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


def _write_tensors(
    file: GgufFile, model: PreTrainedModel, directory: Path, dtype: torch.dtype, advance: Callable[[int], None]
) -> None:
    sources, empty, rows = _sources(file, model), model.state_dict(), dict[str, Tensor]()
    coded = coded_names(model) if dtype == torch.int8 else frozenset[str]()

    def read(name: str) -> Tensor:
        values = _converted(file, model, sources[name], tuple(empty[name].shape))
        if sources[name][0] in (EMBEDDING, HEAD):
            rows[name] = sampled_rows(values).clone()  # not a view, which would keep it all
        advance(values.numel())
        return values

    write_tensors(directory, {name: empty[name] for name in sources}, read, dtype, coded)
    if dtype != torch.float32:
        write_exact_rows(directory, rows)


def write_tensors(
    directory: Path,
    empty: Mapping[str, Tensor],
    read: Callable[[str], Tensor],
    dtype: torch.dtype,
    coded: frozenset[str] = frozenset(),
) -> None:
    """Write tensors shard by shard, so that memory holds one shard and not the model.

    `empty`: the model's, on the meta device. `coded`: those that become int8 codes; of int8 the others are float32.
    """
    from huggingface_hub import split_torch_state_dict_into_shards

    digests = dict[str, str]()
    shards = split_torch_state_dict_into_shards(
        {name: tensor.to(dtype) for name, tensor in empty.items()}, max_shard_size=_SHARD_BYTES
    )
    plain = dtype if dtype.is_floating_point else torch.float32
    for shard, names in shards.filename_to_tensors.items():
        tensors: dict[str, Tensor] = {}
        for name in names:
            values = read(name)
            tensors |= int8_tensors(name, values) if name in coded else {name: values.to(plain).contiguous()}
        save_file(tensors, directory / shard, metadata={"format": "pt"})
        digests[shard] = weights_digest({}, sorted(tensors.items()))
    (directory / DIGESTS).write_text(json.dumps(digests, indent=2) + "\n")
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def is_cached(directory: Path) -> bool:
    """Return whether a directory was written by write_tensors()."""
    return (directory / DIGESTS).is_file()


def check_written(directory: Path) -> None:
    """Raise UsageError, and remove the directory, where one of this cache does not hold what was written."""
    for name, digest in (read_json(directory / DIGESTS) if is_cached(directory) else {}).items():
        try:
            is_whole = weights_digest({}, sorted(load_file(directory / name).items())) == digest
        except WRITE_ERRORS:
            is_whole = False
        if not is_whole:
            shutil.rmtree(directory, ignore_errors=True)
            raise UsageError(f"{directory / name} is not what was written: it is removed; start again to make it anew")


def _sources(file: GgufFile, model: PreTrainedModel) -> dict[str, list[str]]:
    """Return the stored tensors that each of the model's is made of. Raises UsageError for missing and unknown ones."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(kind for kind, text in MODEL_ARCH_NAMES.items() if text == file.architecture)
    names = get_tensor_name_map(kind, model.config.num_hidden_layers)
    tied = set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()
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
