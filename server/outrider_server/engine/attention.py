"""Tree attention over slots, plugged into transformers under the name `outrider_slots`. Knows layers, not models.

A flat batch [1, N] is a row of segments, one per session: chain rows (context, root), then tree nodes. In every layer a
segment's K/V goes into its slot, and its queries see what the slot holds: all committed rows, the chain up to
themselves, their own ancestors in the tree; within the layer's sliding window, if it has one, measured in positions:

              committed   chain    tree            position of a node = position of the root + depth
    chain     1 1 1 1     1 .      . . .           (never the row number: siblings share a position)
              1 1 1 1     1 1      . . .
    tree 0    1 1 1 1     1 1      1 . .
         1    1 1 1 1     1 1      . 1 .           0 and 1: children of the root; 2: child of 1
         2    1 1 1 1     1 1      . 1 1
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from outrider_server.engine.batch_segment import AttentionCall, BatchSegment
from outrider_server.engine.grouped_attention import AttentionGroup, GroupLimits, Part, attend_by_hand, group_segments

IMPLEMENTATION = "outrider_slots"
_PACKED_ROWS = 64  # up to here a group's query heads are stacked into the rows of one product (measured on CPU)
_JOINED_VALUES = 2**20  # values of keys up to which a copy costs less than a product for each part (measured on CPU)
_SLOTS: ContextVar[SlotAttention | None] = ContextVar("_SLOTS", default=None)
_SCORES = 2**24  # scores held at once where they must be materialized


class SlotAttention(Protocol):
    """The argument `slots` of a model call: one attention call per layer."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Map query [1, heads, N, dim], key and value [1, kv_heads, N, dim] to [1, N, heads, value_dim]."""


class Decoder(Protocol):
    """A model's forward pass in fewer steps than transformers takes."""

    has_own_cores: bool  # threads stay awake, so that the smallest products may take all

    def forward(
        self, tokens: Tensor, positions: Tensor, slots: SlotAttention, keep: Tensor | None, wanted: frozenset[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run rows of tokens [n] at positions [n].

        Return logits of rows `keep` (None: all), and the hidden states `wanted` by transformers' index or BEFORE_NORM.
        """
        ...


class FlatBatch:
    """The segments of one pass; within `limits`, similar ones share one product.

    `invariant`: in float64 (BatchInvariance), rounded once.
    """

    def __init__(
        self, segments: Sequence[BatchSegment], *, limits: GroupLimits | None = None, invariant: bool = False
    ) -> None:
        self.segments = segments
        self._limits, self._invariant = limits, invariant
        self._attend = partial(_attend_segment, invariant=invariant)
        self._num_rows = sum(segment.num_rows for segment in segments)

    @cached_property  # a pass that reads keys where they lie needs none
    def _divided(self) -> tuple[list[AttentionGroup], list[tuple[int, BatchSegment]]]:
        """Groups, and single segments with the index of their first row."""
        sizes = [segment.num_rows for segment in self.segments]
        single = list(zip(accumulate(sizes, initial=0), self.segments, strict=False))
        return group_segments(single, self._limits, invariant=self._invariant) if self._limits else ([], single)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        groups, single = self._divided
        if len(self.segments) == len(single) == 1:
            return self._attend(self.segments[0], layer, query, key[0], value[0], call)
        if len(groups) == 1 and groups[0].covers(self._num_rows):
            return groups[0].attend(layer, query[0], key[0], value[0], call)[None]
        out = query.new_empty(1, self._num_rows, query.shape[1], value.shape[3])
        for group in groups:
            out[0].index_copy_(0, group.rows, group.attend(layer, query[0], key[0], value[0], call))
        for first, segment in single:
            rows = slice(first, first + segment.num_rows)
            out[:, rows] = self._attend(segment, layer, query[:, :, rows], key[0, :, rows], value[0, :, rows], call)
        return out


def _attend_segment(
    segment: BatchSegment,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: AttentionCall,
    *,
    invariant: bool,
) -> Tensor:
    """Map query [1, heads, n, dim], key and value [kv_heads, n, dim] to [1, n, heads, value_dim].

    `invariant`: in float64.
    """
    parts = [*segment.slot.shared(layer), segment.slot.write(layer, key, value)]
    _, heads, num_rows, _ = query.shape
    is_cheap_to_join = num_rows > _PACKED_ROWS or sum(keys.numel() for keys, _ in parts) <= _JOINED_VALUES
    if invariant:
        wide = [(keys.double(), values.double()) for keys, values in parts]
        out = _by_hand(segment, query[0].double(), wide, call).to(query.dtype)
    elif not call.fits_fused_kernel or (len(parts) > 1 and not is_cheap_to_join):
        out = _by_hand(segment, query[0], parts, call)
    elif num_rows <= _PACKED_ROWS:
        out = _packed(segment, query, *_joined(parts), call)
    else:
        out = _expanded(segment, query, *_joined(parts), call)
    # Contiguous, as transformers' own functions answer: some layers take a view of it.
    # Not a view: some of a GPU's kernels answer in the memory order [batch, rows, heads, dim].
    return out.reshape(1, heads, num_rows, -1).transpose(1, 2).contiguous()


def _packed(segment: BatchSegment, query: Tensor, keys: Tensor, values: Tensor, call: AttentionCall) -> Tensor:
    """[1, heads, n, dim] -> [1, kv_heads, group * n, value_dim]. Repeats the mask, not the keys."""
    kv_heads = keys.shape[0]
    group = query.shape[1] // kv_heads
    rows = query.reshape(1, kv_heads, -1, query.shape[3])
    mask = segment.mask(call.window, group)
    return scaled_dot_product_attention(rows, keys[None], values[None], attn_mask=mask, scale=call.scaling)


def _expanded(segment: BatchSegment, query: Tensor, keys: Tensor, values: Tensor, call: AttentionCall) -> Tensor:
    """[1, heads, n, dim] -> [heads, n, value_dim]. The members of a group form the batch, over a view of the keys."""
    kv_heads, (_, heads, num_rows, dim) = keys.shape[0], query.shape
    group = heads // kv_heads
    rows = query.reshape(kv_heads, group, num_rows, dim).transpose(0, 1)
    mask = segment.mask(call.window, 1)
    out = scaled_dot_product_attention(
        rows, keys.expand(group, -1, -1, -1), values.expand(group, -1, -1, -1), attn_mask=mask, scale=call.scaling
    )
    return out.transpose(0, 1).reshape(heads, num_rows, -1)


def _joined(parts: Sequence[Part]) -> Part:
    """Copy the parts into one; beside many rows, or a call for each part, that is cheap."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([keys for keys, _ in parts], dim=1), torch.cat([values for _, values in parts], dim=1)


def _by_hand(segment: BatchSegment, query: Tensor, parts: Sequence[Part], call: AttentionCall) -> Tensor:
    """[heads, n, dim] -> [heads, n, value_dim] without the fused kernel, a block of rows at a time.

    For soft-capped scores (Gemma 2), for sinks (gpt-oss), and for one softmax over keys in several places.
    """
    (heads, num_rows, dim), kv_heads = query.shape, parts[0][0].shape[0]
    *shared, (keys, values) = parts
    group = heads // kv_heads
    grouped = query.reshape(1, kv_heads, group, num_rows, dim)
    block = max(1, _SCORES // (heads * sum(keys.shape[1] for keys, _ in parts)))
    answers: list[Tensor] = []
    for rows in torch.split(grouped, block, dim=3):
        first, count = block * len(answers), rows.shape[3]
        mask = segment.mask(call.window, group if count == num_rows else 1)
        if mask is not None and count < num_rows:
            mask = mask[:, :, first : first + count].repeat(1, 1, group, 1)
        out = attend_by_hand(rows.flatten(2, 3), keys[None], values[None], mask, count, shared, call)
        answers.append(out.view(heads, count, -1))
    return torch.cat(answers, dim=1) if len(answers) > 1 else answers[0]


def _outrider_slots(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slots: SlotAttention | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **extra: Any,  # other arguments that models pass; the check at load shows whether they matter
) -> tuple[Tensor, None]:
    slots = _SLOTS.get() if slots is None else slots
    assert slots is not None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment] # nn.Module's attributes have no types
    return slots.attend(layer, query, key, value, AttentionCall(scale, softcap, sliding_window, s_aux)), None


def hand_on_slots(model: PreTrainedModel) -> None:
    """Let all layers of a model have `slots`: those of Nemotron and StableLM do not hand on what the model is given."""

    def begin(_model: nn.Module, _args: object, given: dict[str, Any]) -> None:  # Any: a call's arguments
        _SLOTS.set(given.get("slots"))

    def end(_model: nn.Module, _args: object, _out: object) -> None:
        _SLOTS.set(None)  # or the last pass's would stay in memory

    model.register_forward_pre_hook(begin, with_kwargs=True)
    model.register_forward_hook(end, always_call=True)


def register() -> None:
    """Make `outrider_slots` known to transformers. Safe to call twice."""
    AttentionInterface.register(IMPLEMENTATION, _outrider_slots)
    # No mask: the segments bring their own.
    AttentionMaskInterface.register(IMPLEMENTATION, lambda *args, **kwargs: None)
