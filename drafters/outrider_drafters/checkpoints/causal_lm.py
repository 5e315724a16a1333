"""Loads a small causal language model with transformers, also one that is stored as int8 or int4 codes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from outrider_drafters.quantization.quantized_tensor import QuantizedWeight
from outrider_drafters.readers.checkpoint import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Loaded = tuple["PreTrainedModel", dict[str, set[str]]]


def load_causal_lm(directory: Path, **options: Any) -> Loaded:  # Any: arguments of from_pretrained
    """Load a model, with transformers' report of missing and unknown tensors. Raises what transformers does."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

    checkpoint, options = Checkpoint(directory), {**options, "output_loading_info": True}
    # trust_remote_code is never left out: transformers would ask on the terminal whether to run the directory's code.
    if not checkpoint.holds_codes:
        return cast(Loaded, AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False, **options))
    config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    tensors = {name: _values(checkpoint.read(name)) for name in checkpoint.names}
    # Not the auto class: it wants a directory, and transformers takes either that or tensors.
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return cast(Loaded, model_class.from_pretrained(None, config=config, state_dict=tensors, **options))


def _values(tensor: Tensor) -> Tensor:
    return tensor.values() if isinstance(tensor, QuantizedWeight) else tensor
