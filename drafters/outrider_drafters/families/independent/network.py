"""A causal language model of transformers, run on a K/V cache of our own.

transformers' caches are cut back differently from version to version and know no trees. So the model runs without one:
an attention function registered as `outrider_drafter` appends each layer's K/V to the cache in this file and attends to
it under the mask of the pass. It works for any architecture whose layers go through AttentionInterface, and is compared
with the model's own attention at load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.float32_arithmetic import Float32Arithmetic, is_plain
from outrider_drafters.blocks.row_buffer import RowBuffer
from outrider_drafters.checkpoints.causal_lm import load_causal_lm
from outrider_drafters.checkpoints.hf_config import explained
from outrider_drafters.readers.checkpoint import need_finite
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IMPLEMENTATION = "outrider_drafter"
_TOLERANCE = 1e-4  # mean, in logit standard deviations, in float32
_ROUNDING = 0.1  # of quantized weights, which no arithmetic makes exact
_PROBE_TOKENS = 8


class CausalCache:
    """Keys and values of all layers for the rows so far, and the rows' positions."""

    def __init__(self) -> None:
        self._keys: dict[int, RowBuffer] = {}
        self._values: dict[int, RowBuffer] = {}
        self._positions: list[int] = []

    @property
    def length(self) -> int:
        return len(self._positions)

    @property
    def positions(self) -> Sequence[int]:
        return self._positions

    def extend(self, positions: Sequence[int]) -> None:
        """Announce rows of these positions, which every layer appends next."""
        self._positions.extend(positions)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append rows [1, kv_heads, n, dim] to a layer and return all its rows. Keys and values may differ in width."""
        for rows, new in ((self._keys, keys), (self._values, values)):
            if layer not in rows:
                rows[layer] = RowBuffer(1, new.shape[1], width=new.shape[3], dtype=new.dtype, device=new.device)
            rows[layer].append(new)
        return self._keys[layer].all, self._values[layer].all

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows, or all if there are fewer."""
        del self._positions[length:]
        for rows in (*self._keys.values(), *self._values.values()):
            rows.truncate(length)


class CausalModel:
    """A loaded model that runs on any number of caches. Raises UsageError for a model that cannot."""

    def __init__(self, model: PreTrainedModel) -> None:
        _register()
        model.set_attn_implementation(IMPLEMENTATION)
        model.train(False)
        self.model = model.requires_grad_(False)
        config = model.config.get_text_config()
        self.kind: str = model.config.model_type
        self.max_context: int | None = getattr(config, "max_position_embeddings", None)
        self.num_rows = num_embeddings(model)
        self._check()

    @classmethod
    def load(
        cls, directory: Path, like: Tensor, prepare: Callable[[PreTrainedModel], set[str]], spare: int = 0
    ) -> CausalModel:
        """Load a directory, like `like`; `prepare` may change it and names tensors to spare. Raises UsageError.

        `spare`: how many weights these tensors have.
        """
        try:
            import transformers  # noqa: F401  # what is missing, where it is
        except ImportError as error:
            raise UsageError(
                f"{directory}: a whole language model needs transformers: install outrider[models]"
            ) from error
        _register()
        model, info = load_causal_lm(directory, spare=spare, dtype=like.dtype, attn_implementation=IMPLEMENTATION)
        replaced = prepare(model)
        for trouble, names in (("lacks", info["missing_keys"] - replaced), ("holds unknown", info["unexpected_keys"])):
            if names:
                raise UsageError(f"{directory}: {trouble} tensors {', '.join(sorted(names)[:8])}")
        need_finite(directory, chain(model.named_parameters(), model.named_buffers()))
        return cls(model.to(like.device))  # type: ignore[arg-type]  # transformers' wrapper hides the arguments

    @torch.inference_mode()
    def run(
        self, tokens: Sequence[int], positions: Sequence[int], cache: CausalCache, mask: Tensor | None, last_only: bool
    ) -> Tensor:
        """Append the tokens' rows to the cache and compute logits [n, rows] float32, or [1, rows] of the last token.

        mask [n, rows of the cache] bool; None: they see all earlier rows and each other causally.
        """
        cache.extend(positions)
        ids = torch.tensor([list(tokens), list(positions)], device=self.model.device)
        logits: Tensor = self.model(
            input_ids=ids[:1],
            position_ids=ids[1:],
            use_cache=False,
            outrider_pass=AttentionPass(cache, len(tokens), mask),
            logits_to_keep=1 if last_only else 0,
        ).logits[0]
        return (logits[-1:] if last_only else logits).float()

    @torch.inference_mode()
    def _check(self) -> None:
        """Raise UsageError unless a chain and a tree on our cache reproduce the model's own attention, in float32."""
        tokens = [(7919 * i + 13) % self.num_rows for i in range(_PROBE_TOKENS)]
        half, places = _PROBE_TOKENS // 2, list(range(_PROBE_TOKENS))
        cache = CausalCache()
        # The second pass begins with a branch that the rows after it must not see.
        mask = torch.ones(half + 1, _PROBE_TOKENS + 1, dtype=torch.bool, device=self.model.device).tril(half)
        mask[1:, half] = False
        exact = is_plain(self.model)
        try:
            with Float32Arithmetic() if exact else nullcontext():
                first = self.run(tokens[:half], places[:half], cache, None, last_only=False)
                second = self.run([tokens[0], *tokens[half:]], [half, *places[half:]], cache, mask, last_only=False)
                self.model.set_attn_implementation("eager")
                ids = torch.tensor([tokens], device=self.model.device)
                own = self.model(input_ids=ids, use_cache=False).logits[0].float()
        except Exception as error:  # in as many ways as there are architectures
            raise UsageError(f"{self.kind}: it does not run on a drafter's cache: {explained(error)}") from error
        finally:
            self.model.set_attn_implementation(IMPLEMENTATION)
        difference = float((torch.cat((first, second[1:])) - own).abs().mean() / own.std().clamp_min(1e-6))
        # "not <=" rather than ">": a NaN must fail.
        if not difference <= (_TOLERANCE if exact else _ROUNDING):
            raise UsageError(
                f"{self.kind}: a drafter's cache does not reproduce the model's own attention (logits differ by"
                f" {difference:.2g} standard deviations); this architecture cannot be an independent drafter"
            )


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPass:
    """The context of one pass for each layer's attention: the cache, the number of new rows, their mask."""

    cache: CausalCache
    num_new: int
    mask: Tensor | None

    def visible(self, window: int | None) -> Tensor | None:
        """Compute the mask [new rows, all rows] bool; None if every row sees all."""
        length = self.cache.length
        mask = self.mask
        if mask is None and self.num_new > 1:
            mask = torch.ones(self.num_new, length, dtype=torch.bool).tril(length - self.num_new)
        if window is None or max(self.cache.positions) < window:
            return mask
        # The window counts positions, not rows: sibling nodes of a tree share a position.
        places = torch.tensor(self.cache.positions)
        near = places[-self.num_new :, None] - places < window
        return near if mask is None else mask & near.to(mask.device)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    outrider_pass: AttentionPass,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **extra: Any,  # other arguments that models pass; the check at load finds one that matters
) -> tuple[Tensor, None]:
    """Attend from query [1, heads, n, dim], key and value [1, kv_heads, n, dim]: [1, n, heads, value_dim]."""
    layer: int = module.layer_idx  # type: ignore[assignment] # nn.Module's attributes have no types
    keys, values = outrider_pass.cache.append(layer, key, value)
    mask = outrider_pass.visible(sliding_window)
    mask = None if mask is None else mask.to(query.device)
    if softcap is None:
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling, enable_gqa=True)
    else:
        out = _softcapped(query, keys, values, mask, query.shape[-1] ** -0.5 if scaling is None else scaling, softcap)
    return out.transpose(1, 2), None


def _softcapped(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, softcap: float
) -> Tensor:
    """Attend with scores capped to +-softcap before the softmax (Gemma 2)."""
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.tanh(query @ keys.transpose(2, 3) * (scaling / softcap)) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ values


def _no_mask(*args: Any, **kwargs: Any) -> None:  # signature is transformers' mask functions'
    """Build no mask: AttentionPass has its own."""


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, _attend)
    AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)


def num_embeddings(model: PreTrainedModel) -> int:
    """Return the rows of the model's embedding, the number of token ids it can read. Raises UsageError."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise UsageError(f"{model.config.model_type}: has no embedding of tokens")
    return embedding.num_embeddings
