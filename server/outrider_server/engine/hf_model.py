"""The Hugging Face side of a target: loading it, its attention, linear layers and config. Knows no slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.checkpoints.gguf_target import suitable_dtype
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_drafters.processor import cpu_has_bf16
from outrider_drafters.readers.config import read_config
from outrider_drafters.readers.gguf_file import SUFFIX, GgufFile
from outrider_proto.errors import UsageError
from outrider_server.engine.attention import IMPLEMENTATION, register

_SMALL = 30_000_000  # parameters of a target for which one thread is fastest
_LONGEST_MESSAGE = 300
_PRODUCT_ROWS = 32  # a tree of 16 with its chain is one product; a single row costs as much as 32
AUTO = "auto"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


def is_small(model: PreTrainedModel) -> bool:
    """Return whether more CPU threads cost more than they gain."""
    return sum(parameter.numel() for parameter in model.parameters()) < _SMALL


def load_model(
    path: str, dtype: torch.dtype, device: torch.device | None, distributed_config: object | None = None
) -> PreTrainedModel:
    """Load a model onto a device, or (None) where `distributed_config` puts it. Raises UsageError."""
    if find_bundle(Path(path)) is not None:
        raise UsageError(f"target {path}: an edge bundle, which has no layers to verify with; give the full target")
    read_config(Path(path))  # or transformers' own words for a directory without one, which go over pages
    register()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call] # transformers
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(  # its annotation lacks output_loading_info
            path,
            dtype=dtype,
            attn_implementation=IMPLEMENTATION,
            output_loading_info=True,
            # Not left out: None would ask on the terminal whether to run the directory's own code.
            trust_remote_code=False,
            **_placement(device, distributed_config),
        )
        model: PreTrainedModel = loaded[0]
        if device is not None and model.device != device:
            model.to(device)  # type: ignore[arg-type] # transformers' annotation of `to` hides nn.Module's
    # Whatever a checkpoint does not stand: a quantization's missing library, a file cut short, no memory on the device.
    except Exception as error:
        raise UsageError(f"target {path}: {explained(error)}") from error
    info: dict[str, Any] = loaded[1]
    # transformers only warns about missing tensors, and fills them with random numbers.
    if missing := sorted(info["missing_keys"]):
        raise UsageError(f"target {path}: {len(missing)} tensors are missing, the first is {missing[0]}")
    return model


def explained(error: Exception) -> str:
    """Return the error's name and its first line; transformers' messages go over pages."""
    words = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {words[:_LONGEST_MESSAGE]}" if words else type(error).__name__


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
    file = Path(name_or_path).expanduser()
    path = file if file.suffix == SUFFIX and file.is_file() else resolve_dir(name_or_path)
    computed_in = resolve_dtype(dtype, path, device)
    return resolve_dir(path, computed_in), computed_in


def resolve_dtype(name: str, path: Path, device: torch.device) -> torch.dtype:
    """Return the dtype of that name. Raises UsageError.

    auto: the checkpoint's own on a GPU; float32 on a CPU, where answers then are the same on every processor.
    """
    if name == AUTO:
        return torch.float32 if device.type == "cpu" else _own_dtype(path)
    if name not in DTYPES:
        raise UsageError(f"dtype={name}: need one of {AUTO}, {', '.join(DTYPES)}")
    return DTYPES[name]


def costly_placement(dtype: torch.dtype, device: torch.device, path: Path) -> str | None:
    """Return a warning where a choice makes every pass several times slower than it need be."""
    if device.type == "cpu":
        if torch.cuda.is_available():
            return "device=cpu: this machine has a GPU, which is many times faster; leave --device out to use it"
        if dtype != torch.float32 and not cpu_has_bf16():
            return f"dtype={dtype_name(dtype)}: this processor does not compute in it; passes take several times longer"
    elif dtype == torch.float32 and (own := _own_dtype(path)) != torch.float32:
        return f"dtype=float32: twice the memory and several times the time of {dtype_name(own)}, the checkpoint's own"
    return None


def _own_dtype(path: Path) -> torch.dtype:
    if path.is_file():
        return suitable_dtype(GgufFile.read(path))
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        raise UsageError(f"target {path}: {explained(error)}") from error
    own = config.get_text_config().dtype or config.dtype
    if own is None:
        return torch.float32
    return own if own in DTYPES.values() else torch.bfloat16  # weights of 8 bits and fewer are decoded to it


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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


class BatchInvariance(TorchFunctionMode):
    """While it is entered, passes do not depend on what else they compute: the switch `batch_invariant`.

    In bfloat16 and float16 a product over 17 rows adds up in another order than one over a single row, rounds another
    way, and where two tokens are about equally likely the argmax may change: drafted, batched and plain answers then
    part. Here linear layers take their rows in products of a fixed size, and means (a GPU's depend on the number of
    rows, too) and attention add up in float64, where the order changes less than the rounding to the model's type can
    see. Activations and rotations work on a number at a time anyway. The same idea on a GPU: Horace He and Thinking
    Machines Lab, "Defeating Nondeterminism in LLM Inference" (2025).
    """

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear:
            func = _in_products
        elif func is Tensor.mean:
            func = _wide_mean
        return func(*args, **(kwargs or {}))


def _wide_mean(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x.double().mean(*args, **kwargs).to(x.dtype)


def _in_products(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Map x [..., in] to [..., out]."""
    rows = x.reshape(-1, x.shape[-1])
    padded = F.pad(rows, (0, 0, 0, -len(rows) % _PRODUCT_ROWS))
    products = [F.linear(part, weight, bias) for part in torch.split(padded, _PRODUCT_ROWS)]
    return torch.cat(products)[: len(rows)].view(*x.shape[:-1], len(weight))
