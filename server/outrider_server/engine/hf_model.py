"""The Hugging Face side of a target: loading a model, its attention and its config. Knows no slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_proto.errors import UsageError
from outrider_server.engine.attention import IMPLEMENTATION, register

_SMALL = 30_000_000  # parameters of a target for which one thread is fastest
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
    handle = _last_layer(model).register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def _last_layer(model: PreTrainedModel) -> nn.Module:
    """Return the last decoder layer: that of the list which is as long as the config says."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module[-1]
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
            **({} if distributed_config is None else {"distributed_config": distributed_config}),
        )
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise UsageError(f"target {path}: {error}") from error
    model: PreTrainedModel = loaded[0]
    info: dict[str, Any] = loaded[1]
    # transformers only warns about missing tensors, and fills them with random numbers.
    if missing := sorted(info["missing_keys"]):
        raise UsageError(f"target {path}: {len(missing)} tensors are missing, the first is {missing[0]}")
    if device is not None:
        model.to(device)  # type: ignore[arg-type] # transformers' annotation of `to` hides nn.Module's
    return model


def check_dtype(name: str) -> torch.dtype:
    """Return the dtype of that name. Raises UsageError."""
    if name not in DTYPES:
        raise UsageError(f"dtype={name}: need one of {', '.join(DTYPES)}")
    return DTYPES[name]


def check_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        # torch.device() accepts devices that do not exist; only an allocation fails, by AssertionError without CUDA.
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device={name}: {str(error).splitlines()[0]}") from error
    return device


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
