"""The frozen target in training: any Hugging Face causal LM, run once per batch for all that a family needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.checkpoints.causal_lm import load_causal_lm
from outrider_drafters.checkpoints.target_weights import TargetWeights, resolve_dir, target_sizes
from outrider_drafters.contracts.tap import LAST, Activations
from outrider_drafters.families.moa.network import pack_kv
from outrider_drafters.readers.config import config_int, read_config
from outrider_models.training.core.interfaces import TargetFacts, TeacherOutput, TeacherRequest
from outrider_proto.errors import UsageError

_KV, _LIKELIEST = "kv", "likeliest"
_ROWS = 256  # of logits at once
_CHECKED_TOKENS = 32
_MAX_VARIATION = 0.05  # of distributions; rounding in bfloat16 and Gemma 2's cap stay far below


class Teacher:
    """A target whose outputs teach drafters; its own weights do not change."""

    def __init__(self, model: PreTrainedModel, facts: TargetFacts) -> None:
        self.model = model.requires_grad_(False).train(False)
        self.facts = facts
        self.embed: Tensor = _weight(model.get_input_embeddings(), "embedding")
        self.lm_head: Tensor = _weight(model.get_output_embeddings(), "lm_head")  # type: ignore[no-untyped-call]  # transformers
        self._unit = _final_norm_size(model)
        self.restrict(None)
        self._read: dict[int, LastLayers] = {}

    @classmethod
    def load(cls, name_or_path: str | Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> "Teacher":
        """Load a model from a directory or by its hub name. Raises UsageError."""
        directory = resolve_dir(name_or_path, dtype)
        facts = target_facts(directory)
        model, _ = load_causal_lm(directory, quantized=True, dtype=dtype)
        teacher = cls(model.to(device), facts)  # type: ignore[arg-type]  # transformers' wrapper hides the arguments
        teacher.check_distribution()
        return teacher

    @torch.no_grad()
    def check_distribution(self) -> None:
        """Raise UsageError where the target's distribution is not that of its lm_head, from which drafters learn."""
        # Measured, not read from the config: scaled logits (Granite, Cohere), a bias (Phi) and caps (Gemma 2, which
        # changes next to nothing) go by a new name in every family.
        tokens = torch.arange(1, _CHECKED_TOKENS + 1, device=self.embed.device).remainder(len(self.embed)).unsqueeze(0)
        own = self.model(input_ids=tokens).logits.float().softmax(-1)
        last = self.run(tokens, TeacherRequest()).hidden[LAST]
        taught = F.linear(last, self.lm_head).float().softmax(-1)
        apart = ((own - taught).abs().sum(-1) / 2).mean().item()
        if apart > _MAX_VARIATION:
            raise UsageError(
                f"target: its logits are not those of its lm_head (scaled, capped or biased; total variation "
                f"{apart:.2f}), and drafters would learn another distribution than it serves: it cannot teach"
            )

    def target_weights(self) -> TargetWeights:
        """Return the weights that drafters borrow, without copying them."""
        eos = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ends = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
        return TargetWeights(self.embed, self.lm_head, self.facts.sizes, ends, self.facts.directory)

    def restrict(self, draft_tokens: Tensor | None) -> None:
        """Teach the distribution over these tokens [Vd] alone; None: over all."""
        self._draft_tokens = None if draft_tokens is None else draft_tokens.to(self.lm_head.device)
        self._draft_head = self.lm_head if self._draft_tokens is None else self.lm_head[self._draft_tokens]

    def fields(self, request: TeacherRequest) -> tuple[str, ...]:
        """Return the names of what `compute` returns for a request."""
        names = [_hidden_name(layer) for layer in request.hidden]
        return (*names, *([_KV] if request.kv else []), *([_LIKELIEST] if self._draft_tokens is not None else []))

    @torch.no_grad()
    def compute(self, tokens: Tensor, request: TeacherRequest, loss_mask: Tensor | None = None) -> dict[str, Tensor]:
        """Compute `fields` [B, T, ...] of right-padded tokens [B, T].

        The likeliest tokens are those of `loss_mask` [B, T], or all. Raises UsageError if the model forgets K/V.
        """
        hidden, cache = self._states(tokens, (*request.hidden, LAST), request.kv)
        fields = {_hidden_name(layer): hidden[layer] for layer in request.hidden}
        if cache is not None:
            fields[_KV] = pack_kv(*cache)
        if self._draft_tokens is not None:
            fields[_LIKELIEST] = self._likeliest(hidden[LAST], tokens, loss_mask)
        return fields

    def _states(
        self, tokens: Tensor, layers: Sequence[int], kv: bool
    ) -> tuple[dict[int, Tensor], tuple[Tensor, Tensor] | None]:
        """Return hidden states [B, T, E] of these layers, and keys and values if wanted."""
        # Hidden states of all layers take memory: they are asked for only where an inner one is needed.
        inner = any(layer != LAST for layer in layers)
        output = self.model.base_model(input_ids=tokens, use_cache=kv, output_hidden_states=inner)
        hidden = {layer: output.last_hidden_state if layer == LAST else output.hidden_states[layer] for layer in layers}
        return hidden, _stacked(output.past_key_values, tokens.shape[1]) if kv else None

    def output(self, fields: Mapping[str, Tensor], request: TeacherRequest) -> TeacherOutput:
        """Put computed fields together with the weights that drafters borrow."""
        return TeacherOutput(
            embed=self.embed,
            lm_head=self._draft_head,
            feature_scale=self._unit,
            hidden={layer: fields[_hidden_name(layer)] for layer in request.hidden},
            packed_kv=fields.get(_KV),
            last_layers=self._last_layers(request.last_layers) if request.last_layers else None,
            draft_tokens=self._draft_tokens,
            likeliest=fields.get(_LIKELIEST),
        )

    def run(self, tokens: Tensor, request: TeacherRequest, loss_mask: Tensor | None = None) -> TeacherOutput:
        """Compute what is requested for tokens, as `compute` does."""
        return self.output(self.compute(tokens, request, loss_mask), request)

    def check(self, request: TeacherRequest) -> None:
        """Raise UsageError if the target lacks what is requested."""
        self.run(torch.zeros(1, 2, dtype=torch.int64, device=self.embed.device), request)

    @torch.no_grad()
    def activations(self, tokens: Tensor, needs_kv: bool, hidden_layers: tuple[int, ...]) -> Activations:
        """Return activations of one text [1, T] in the form that a tap reads."""
        hidden, cache = self._states(tokens, hidden_layers, needs_kv)
        keys, values = cache or self.embed.new_empty(2, 1, 0)
        return Activations(keys[0], values[0], {layer: rows[0] for layer, rows in hidden.items()})

    def _likeliest(self, hidden: Tensor, tokens: Tensor, loss_mask: Tensor | None) -> Tensor:
        mask = torch.ones_like(tokens, dtype=torch.bool) if loss_mask is None else loss_mask
        found = torch.zeros_like(tokens)
        parts = [F.linear(rows, self.lm_head).argmax(-1) for rows in torch.split(hidden[mask], _ROWS)]
        found[mask] = torch.cat(parts) if parts else found.new_empty(0)
        return found

    def _last_layers(self, count: int) -> LastLayers:
        if count not in self._read:
            self._read[count] = self.target_weights().last_layers(count)
        return self._read[count]


def target_facts(directory: Path) -> TargetFacts:
    """Read the properties that drafters' default sizes follow from. Raises UsageError."""
    config, sizes = read_config(directory), target_sizes(directory)
    return TargetFacts(directory, sizes, config_int(config, "intermediate_size", 4 * sizes.hidden))


def _hidden_name(layer: int) -> str:
    return f"hidden{layer}"


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
    # Layers with a sliding window silently keep the last tokens only; their rows would not line up with the text.
    for number, layer in enumerate(cache.layers):
        if (kept := layer.keys.shape[-2]) != length:
            raise UsageError(
                f"target: layer {number} keeps K/V of {kept} of {length} tokens (a sliding window); "
                "this family needs them all: lower data.max_length to the window"
            )
    layers = cache.layers
    return torch.stack([layer.keys for layer in layers], dim=1), torch.stack([layer.values for layer in layers], dim=1)
