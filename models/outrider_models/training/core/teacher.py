"""The frozen target in training: any Hugging Face causal LM, run once per batch for all that a family needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.checkpoints.target_weights import TargetWeights, resolve_dir, target_sizes
from outrider_drafters.contracts.tap import LAST, Activations
from outrider_drafters.readers.config import config_int, read_config
from outrider_models.training.core.interfaces import TargetFacts, TeacherOutput, TeacherRequest
from outrider_proto.errors import UsageError


class Teacher:
    """A target whose outputs teach drafters; its own weights do not change."""

    def __init__(self, model: PreTrainedModel, facts: TargetFacts) -> None:
        self.model = model.requires_grad_(False).train(False)
        self.facts = facts
        self.embed: Tensor = _weight(model.get_input_embeddings(), "embedding")
        self.lm_head: Tensor = _weight(_output(model), "lm_head")
        self._unit = _final_norm_size(model)
        self._read: dict[int, LastLayers] = {}

    @classmethod
    def load(cls, name_or_path: str | Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> "Teacher":
        """Load a model from a directory or by its hub name. Raises UsageError."""
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers
        directory = resolve_dir(name_or_path)
        facts = target_facts(directory)
        try:
            model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"{directory}: not a causal language model that transformers loads ({error})") from error
        return cls(model.to(device), facts)  # type: ignore[arg-type]  # transformers' wrapper hides the arguments

    def target_weights(self) -> TargetWeights:
        """Return the weights that drafters borrow, without copying them."""
        eos = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ends = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
        return TargetWeights(self.embed, self.lm_head, self.facts.sizes, ends, self.facts.directory)

    @torch.no_grad()
    def run(self, tokens: Tensor, request: TeacherRequest) -> TeacherOutput:  # [B, T] int64, right-padded
        """Compute what is requested for tokens. Raises UsageError if the model does not keep K/V of the whole text."""
        # Hidden states of all layers take memory: they are asked for only where an inner one is needed.
        inner = any(layer != LAST for layer in request.hidden)
        output = self.model.base_model(input_ids=tokens, use_cache=request.kv, output_hidden_states=inner)
        hidden = {layer: output.last_hidden_state if layer == LAST else output.hidden_states[layer]
                  for layer in request.hidden}  # fmt: skip
        keys, values = _stacked(output.past_key_values, tokens.shape[1]) if request.kv else (None, None)
        last_layers = self._last_layers(request.last_layers) if request.last_layers else None
        return TeacherOutput(self.embed, self.lm_head, self._unit, hidden, keys, values, last_layers)

    def activations(self, tokens: Tensor, needs_kv: bool, hidden_layers: tuple[int, ...]) -> Activations:
        """Return activations of one text [1, T] in the form that a tap reads."""
        target = self.run(tokens, TeacherRequest(hidden_layers, needs_kv))
        nothing = self.embed.new_empty(0)
        keys, values = (nothing if part is None else part[0] for part in (target.keys, target.values))
        return Activations(keys, values, {layer: rows[0] for layer, rows in target.hidden.items()})

    def _last_layers(self, count: int) -> LastLayers:
        if count not in self._read:
            self._read[count] = self.target_weights().last_layers(count)
        return self._read[count]


def target_facts(directory: Path) -> TargetFacts:
    """Read the properties that drafters' default sizes follow from. Raises UsageError."""
    config, sizes = read_config(directory), target_sizes(directory)
    return TargetFacts(directory, sizes, config_int(config, "intermediate_size", 4 * sizes.hidden))


def _output(model: PreTrainedModel) -> object:
    return model.get_output_embeddings()  # type: ignore[no-untyped-call]  # unannotated in transformers


def _weight(module: Any, what: str) -> Tensor:  # Any: whatever the model answers with
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise UsageError(f"target: its {what} is not a matrix, so drafters cannot borrow it")
    return weight.detach()


def _final_norm_size(model: PreTrainedModel) -> Tensor:
    norm = getattr(model.base_model, "norm", None)
    weight = getattr(norm, "weight", None)
    return weight.float().pow(2).mean().sqrt() if isinstance(weight, Tensor) else torch.tensor(1.0)


def _stacked(cache: Any, length: int) -> tuple[Tensor, Tensor]:  # Any: transformers' cache classes share no type
    layers: list[Mapping[str, Tensor]] = [{"keys": layer.keys, "values": layer.values} for layer in cache.layers]
    # Layers with a sliding window silently keep the last tokens only; their rows would not line up with the text.
    for number, layer in enumerate(layers):
        if layer["keys"].shape[-2] != length:
            raise UsageError(
                f"target: layer {number} keeps K/V of {layer['keys'].shape[-2]} of {length} tokens (a sliding window); "
                "this family needs them all: lower data.max_length to the window"
            )
    keys, values = (torch.stack([layer[kind] for layer in layers], dim=1) for kind in ("keys", "values"))
    return keys, values
