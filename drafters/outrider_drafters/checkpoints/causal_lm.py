"""Loads a small causal language model with transformers, also one that is stored as int8 or int4 codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registrations

from outrider_drafters.checkpoints.hf_config import causal_config, explained
from outrider_drafters.quantization.quantized_tensor import QuantizedWeight
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_drafters.readers.target_cache import DIGESTS
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Loaded = tuple["PreTrainedModel", dict[str, set[str]]]
_SPARE_BUFFERS = 2**28  # bytes of tables that follow from a config, as masks and angles of positions
_SPARE_MODULES = 4096
_MODULES_PER_TENSOR = 64
_PACKED = 16  # values of 2 bits in a stored one of 32


def load_causal_lm(directory: Path, *, quantized: bool = False, spare: int = 0, **options: Any) -> Loaded:
    """Load a model, with transformers' report of missing and unknown tensors. Raises UsageError.

    `quantized`: also one whose config.json names a quantization. `spare`: number of weights that its files may lack.
    `options` are from_pretrained's.
    """
    config, checkpoint = causal_config(directory, quantized=quantized), Checkpoint(directory)
    with _without_reports(), _within(checkpoint, config, spare):
        model, info = _loaded(checkpoint, config, {**options, "output_loading_info": True, "config": config})
    # Of our own files, each tensor has the name of the weight that it is.
    for name, weight in model.named_parameters() if (directory / DIGESTS).is_file() else ():
        stored = checkpoint.read(name) if name in checkpoint.names and type(weight) is nn.Parameter else weight
        if type(stored) is Tensor and weight.is_cpu and (stored.dtype, stored.shape) == (weight.dtype, weight.shape):
            weight.data = stored  # which can be released
    return model, info


def empty_causal_lm(checkpoint: Checkpoint, **options: Any) -> PreTrainedModel:
    """Make a model without memory for its weights, which are on the meta device. Raises UsageError."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config = causal_config(checkpoint.directory)
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with _without_reports():
        with torch.device("meta"), _within(checkpoint, config, 0):  # tables, too: the next ones are made in earnest
            model_class._from_config(config, **options)
        with _without_weights(), _within(checkpoint, config, 0):
            made: PreTrainedModel = model_class._from_config(config, **options)
    return made


def _loaded(checkpoint: Checkpoint, config: PreTrainedConfig, options: dict[str, Any]) -> Loaded:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    # trust_remote_code is never left out: transformers would ask on the terminal whether to run code.
    if not checkpoint.holds_codes:
        place = checkpoint.directory
        return cast(Loaded, AutoModelForCausalLM.from_pretrained(place, trust_remote_code=False, **options))
    stored = {name: checkpoint.read(name) for name in checkpoint.names}
    tensors = {name: each.values() if isinstance(each, QuantizedWeight) else each for name, each in stored.items()}
    # Not the auto class: it wants a directory, and transformers takes either that or tensors.
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return cast(Loaded, model_class.from_pretrained(None, state_dict=tensors, **options))


@contextmanager
def _without_reports() -> Iterator[None]:
    """Keep transformers from drawing bars, and tables of tensors that do not fit: an error of one line says so."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call] # transformers
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # transformers
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _without_weights() -> Iterator[None]:
    """Have parameters of models that this thread makes lie on the meta device; buffers are made as always."""
    thread = get_ident()

    def emptied(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or get_ident() != thread:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=False)

    hook = registrations.register_module_parameter_registration_hook(emptied)  # type: ignore[arg-type] # torch: it may answer
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _within(checkpoint: Checkpoint, config: PreTrainedConfig, spare: int) -> Iterator[None]:
    """Raise UsageError as soon as a model that this thread makes grows beyond what the checkpoint can fill, or fails.

    transformers makes it on the meta device, where nothing takes memory yet.
    """
    stored, thread = checkpoint.num_values(), get_ident()
    # Twice, so that others name missing tensors. A tied embedding is made twice, and counted again as the head.
    is_tied = any(getattr(each, "tie_word_embeddings", False) for each in (config, config.get_text_config()))
    copies = _PACKED if getattr(config, "quantization_config", None) is not None else 3 if is_tied else 2
    left = {
        "weights": copies * stored + spare,
        "bytes of tables": 8 * stored + _SPARE_BUFFERS,
        "modules": _MODULES_PER_TENSOR * len(checkpoint.names) + _SPARE_MODULES,
    }

    def counted(what: str, size: Callable[[Any], int]) -> Callable[[nn.Module, str, Any], None]:  # Any: what is added
        def count(module: nn.Module, name: str, added: Any) -> None:  # Any: as above
            if get_ident() == thread:
                left[what] -= size(added)
                if left[what] < 0:
                    raise UsageError(
                        f"{checkpoint.directory}: config.json describes a model with more {what} than its files can"
                        f" hold ({stored:,} weights): {type(module).__name__}.{name} is too much"
                    )

        return count

    def num_meta(added: Any) -> int:  # Any: a tensor or None
        return added.numel() if isinstance(added, Tensor) and added.is_meta else 0

    with ExitStack() as hooks:
        for register, hook in (
            (registrations.register_module_parameter_registration_hook, counted("weights", num_meta)),
            (
                registrations.register_module_buffer_registration_hook,
                counted("bytes of tables", lambda added: num_meta(added) and added.nbytes),
            ),
            (registrations.register_module_module_registration_hook, counted("modules", lambda added: 1)),
        ):
            hooks.callback(register(hook).remove)
        try:
            yield
        except UsageError:
            raise
        except Exception as error:  # weights and numbers that do not fit fail in many ways
            message = f"transformers cannot load it as a causal language model: {explained(error)}"
            raise UsageError(f"{checkpoint.directory}: {message}") from error
