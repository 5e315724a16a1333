"""The Hugging Face side of a target: loading it, its attention, linear layers and config. Knows no slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.checkpoints.causal_lm import load_causal_lm
from outrider_drafters.checkpoints.gguf_target import num_weights, suitable_dtype
from outrider_drafters.checkpoints.hf_config import causal_config, explained
from outrider_drafters.checkpoints.target_weights import find_model, resolve_dir
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_drafters.processor import cpu_has_bf16
from outrider_drafters.quantization.codes import ExactInt8Codes, has_exact_int8
from outrider_drafters.quantization.quantize import coded_names, dtype_name
from outrider_drafters.quantization.quantized_tensor import QuantizedWeight
from outrider_drafters.readers.checkpoint import Checkpoint, need_finite, released
from outrider_drafters.readers.gguf_file import GgufFile
from outrider_proto.errors import UsageError
from outrider_server.engine.attention import IMPLEMENTATION, register
from outrider_server.processor.int8_model import int8_dir, load_int8

# Parameters of a target for which one thread is fastest, and which in float32 takes some 15 ms a token on one core: in
# bfloat16 10, of 25 and more that a token of a served answer takes.
_SMALL = 30_000_000
_FASTER_IN_INT8 = 300_000_000  # parameters from which int8's passes take two thirds of bfloat16's time, AMX or not
_PRODUCT_ROWS = 32  # a tree of 16 with its chain is one product; a single row costs as much as 32
AUTO = "auto"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Give the model transformers' own attention, for the reference path. Not while it serves."""
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


@contextmanager
def last_layer_output(model: PreTrainedModel, *, wanted: bool) -> Iterator[dict[int, Tensor]]:
    """Yield a dict that receives the last layer's output [N, hidden] as BEFORE_NORM, if wanted."""
    seen: dict[int, Tensor] = {}
    if not wanted:
        yield seen
        return

    def keep(_layer: nn.Module, _inputs: object, output: Any) -> None:  # a layer answers a tensor or a tuple
        seen[BEFORE_NORM] = (output[0] if isinstance(output, tuple) else output)[0]

    # hidden_states[-1] is behind the final norm: only a hook sees the last layer's own output.
    handle = decoder_layers(model)[-1].register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Return the list of layers: the one that is as long as the config says. Raises UsageError where there is none."""
    count = model.config.get_text_config().num_hidden_layers
    # The text's alone: a tower for images may have as many layers.
    text: nn.Module = model.get_decoder() or model  # type: ignore[no-untyped-call] # transformers
    for module in text.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UsageError(f"{model.config.model_type}: its {count} layers are not found; no drafter can have their output")


def int8_codes(weight: Tensor) -> ExactInt8Codes | None:
    """Return the codes that a weight of an int8 target is made of."""
    coded = weight.coded if isinstance(weight, QuantizedWeight) else None
    return coded if isinstance(coded, ExactInt8Codes) else None


def holds_int8(module: nn.Module) -> bool:
    """Return whether a module belongs to an int8 target."""
    return any(int8_codes(parameter) is not None for parameter in module.parameters())


def is_small(model: PreTrainedModel) -> bool:
    """Return whether more CPU threads cost more than they gain."""
    return sum(parameter.numel() for parameter in model.parameters()) < _SMALL


def load_model(
    path: str, dtype: torch.dtype, device: torch.device | None, distributed_config: object | None = None
) -> PreTrainedModel:
    """Load a model onto a device, or (None) where `distributed_config` puts it. Raises UsageError."""
    if find_bundle(Path(path)) is not None:
        raise UsageError(f"target {path}: an edge bundle, which has no layers to verify with; give the full target")
    register()
    try:
        if dtype == torch.int8:
            model, info = load_int8(Path(path), IMPLEMENTATION), {"missing_keys": set[str]()}
        else:
            placement = _placement(device, distributed_config)
            model, info = load_causal_lm(
                Path(path), quantized=True, dtype=dtype, attn_implementation=IMPLEMENTATION, **placement
            )
        if device is not None and model.device != device:
            model.to(device)  # type: ignore[arg-type] # transformers' annotation of `to` hides nn.Module's
    except UsageError as error:
        raise UsageError(f"target {error}") from error
    # Whatever a checkpoint does not stand: a quantization's missing library, a file cut short, no memory on the device.
    except Exception as error:
        raise UsageError(f"target {path}: {explained(error)}") from error
    # transformers only warns about missing tensors, and fills them with random numbers.
    if missing := sorted(info["missing_keys"]):
        raise UsageError(f"target {path}: {len(missing)} tensors are missing, the first is {missing[0]}")
    need_finite(f"target {path}", released(chain(model.named_parameters(), model.named_buffers())))
    return model


def _placement(device: torch.device | None, distributed_config: object | None) -> dict[str, Any]:  # Any: arguments
    if distributed_config is not None:
        return {"distributed_config": distributed_config}
    # Straight to the device: through host memory, an 8B model takes its whole size there first.
    if device is not None and device.type != "cpu":
        return {"device_map": {"": device}}
    return {}


def resolve_device(name: str) -> torch.device:
    """Return the device of that name; auto: the first GPU, else the CPU. Raises UsageError."""
    if name == AUTO:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        # torch.device() accepts devices that do not exist; only an allocation fails, by AssertionError without CUDA.
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device={name}: {str(error).splitlines()[0]}") from error


def resolve_target(name_or_path: str, dtype: str, device: torch.device) -> tuple[Path, torch.dtype]:
    """Return a target's directory and the dtype to load it in, which the weights of a GGUF file are written in.

    Raises UsageError.
    """
    path = find_model(name_or_path)
    computed_in = resolve_dtype(dtype, path, device)
    directory = resolve_dir(path, computed_in)
    return (int8_dir(directory) if computed_in == torch.int8 else directory), computed_in


def own_dtype(name_or_path: str) -> torch.dtype:
    """Return the dtype that loses nothing of a target's weights. Raises UsageError."""
    return _own_dtype(find_model(name_or_path))


def resolve_dtype(name: str, path: Path, device: torch.device) -> torch.dtype:
    """Return the dtype of that name. Raises UsageError.

    auto: the checkpoint's own on a GPU; on a CPU bfloat16 where it computes in that, but float32 for small targets.
    """
    if name == AUTO:
        return _own_dtype(path) if device.type != "cpu" else _processor_dtype(path)
    if name not in DTYPES:
        raise UsageError(f"dtype={name}: need one of {AUTO}, {', '.join(DTYPES)}")
    if name == "int8" and device.type != "cpu":
        raise UsageError(f"dtype=int8: for processors; on {device} take {AUTO}")
    if name == "int8" and not has_exact_int8():
        raise UsageError("dtype=int8: this processor does not multiply int8 exactly (VNNI, AMX); take bfloat16")
    return DTYPES[name]


def costly_placement(dtype: torch.dtype, device: torch.device, path: Path) -> str | None:
    """Return a warning where a choice makes every pass several times slower than it need be."""
    if device.type == "cpu":
        if torch.cuda.is_available():
            return "device=cpu: this machine has a GPU, which is many times faster; leave --device out to use it"
        if dtype in (torch.bfloat16, torch.float16) and not cpu_has_bf16():
            return f"dtype={dtype_name(dtype)}: this processor does not compute in it; passes take several times longer"
    elif dtype == torch.float32 and (own := _own_dtype(path)) != torch.float32:
        return f"dtype=float32: twice the memory and several times the time of {dtype_name(own)}, the checkpoint's own"
    return None


def int8_offer(model: PreTrainedModel) -> str | None:
    """Return a line on what int8 would give a target on a processor; None where that is nothing."""
    count, dtype = sum(parameter.numel() for parameter in model.parameters()), model.dtype
    is_quantized = getattr(model.config, "quantization_config", None) is not None
    if model.device.type != "cpu" or count < _SMALL or is_quantized or not has_exact_int8():
        return None
    try:
        coded_names(model)
    except UsageError:
        return None
    is_faster = dtype == torch.float32 or count >= _FASTER_IN_INT8
    passes = "passes over a few tokens take some two thirds of the time, " if is_faster else ""
    before, after = (f"{count * size / 1e9:.2g}" for size in (dtype.itemsize, 1))
    return (
        f"dtype={dtype_name(dtype)}: with --dtype int8 weights take {after} GB instead of {before}, {passes}and "
        "answers are the same bits in any batch, those of a model rounded to 8 bits"
    )


def _processor_dtype(path: Path) -> torch.dtype:
    if not cpu_has_bf16():
        return torch.float32
    try:
        count = num_weights(GgufFile.read(path)) if path.is_file() else Checkpoint(path).num_values()
    except UsageError:  # whoever loads it says why
        return torch.float32
    return torch.float32 if count < _SMALL else torch.bfloat16


def _own_dtype(path: Path) -> torch.dtype:
    if path.is_file():
        return suitable_dtype(GgufFile.read(path))
    config = causal_config(path)
    own: Any = config.get_text_config().dtype or config.dtype  # Any: transformers' annotation has the name, too
    if own is None:
        return torch.float32
    return own if own in DTYPES.values() else torch.bfloat16  # weights of 8 bits and fewer are decoded to it


def context_length(model: PreTrainedModel, requested: int | None) -> int:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is None:
        raise UsageError(f"{model.config.model_type}: its config names no max_position_embeddings")
    if requested is None:
        return int(limit)
    if not 2 <= requested <= limit:
        raise UsageError(f"max_context={requested}: need 2 to {limit}, the target's own")
    return requested


def eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    generation = model.generation_config
    ids = generation.eos_token_id if generation is not None else None
    if ids is None:
        return ()
    return tuple(sorted(ids)) if isinstance(ids, (list, tuple)) else (int(ids),)


# Sums, and functions whose results for sixteen numbers at a time and for one differ in the last bit.
_WIDENED = {Tensor.mean, F.silu, F.gelu, Tensor.cos, Tensor.sin}


class BatchInvariance(TorchFunctionMode):
    """While it is entered, passes do not depend on what else they compute: the switch `batch_invariant`.

    In bfloat16 and float16 a product over 17 rows adds up in another order than one over a single row, rounds another
    way, and where two tokens are about equally likely the argmax may change: drafted, batched and plain answers then
    part. Here linear layers take their rows in products of a fixed size, and means (a GPU's depend on the number of
    rows, too) and attention add up in float64, where the order changes less than the rounding to the model's type can
    see. Products of int8 codes need nothing of this. The same idea on a GPU: Horace He and Thinking Machines Lab,
    "Defeating Nondeterminism in LLM Inference" (2025).
    """

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and not isinstance(args[1], QuantizedWeight):
            func = _in_products
        if func in _WIDENED:
            return func(args[0].double(), *args[1:], **(kwargs or {})).to(args[0].dtype)
        return func(*args, **(kwargs or {}))


def _in_products(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Map x [..., in] to [..., out]."""
    rows = x.reshape(-1, x.shape[-1])
    padded = F.pad(rows, (0, 0, 0, -len(rows) % _PRODUCT_ROWS))
    products = [F.linear(part, weight, bias) for part in torch.split(padded, _PRODUCT_ROWS)]
    return torch.cat(products)[: len(rows)].view(*x.shape[:-1], len(weight))
