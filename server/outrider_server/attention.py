"""Tree attention over slots, plugged into transformers under the name `outrider_slots`. Knows layers, not models.

A flat batch [1, N] is a row of pieces, one per session: chain rows (context, root), then tree nodes. In every layer a
piece's K/V goes into its slot, and its queries see what the slot holds: all committed rows, the chain up to themselves,
their own ancestors in the tree; within the layer's sliding window, if it has one, measured in positions:

              committed   chain    tree            position of a node = position of the root + depth
    chain     1 1 1 1     1 .      . . .           (never the row number: siblings share a position)
              1 1 1 1     1 1      . . .
    tree 0    1 1 1 1     1 1      1 . .
         1    1 1 1 1     1 1      . 1 .           0 and 1: children of the root; 2: child of 1
         2    1 1 1 1     1 1      . 1 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from outrider_proto.tree import DraftTree
from outrider_server.slots import Slot

IMPLEMENTATION = "outrider_slots"
_PACKED_ROWS = 64  # up to here a group's query heads are stacked into the rows of one product (measured on CPU)
_SOFTCAP_SCORES = 2**24  # score values held at once where they must be materialised


class SlotAttention(Protocol):
    """What `model(..., slots=...)` takes: one attention call per layer."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        """query [1, heads, N, dim], key and value [1, kv_heads, N, dim] -> [1, N, heads, value_dim]."""


class Call:
    """How a layer wants its scores: scaled, perhaps soft-capped, perhaps within a sliding window."""

    __slots__ = ("scaling", "softcap", "window")

    def __init__(self, scaling: float, softcap: float | None, window: int | None) -> None:
        self.scaling = scaling
        self.softcap = softcap
        self.window = window


class Piece:
    """One session's rows in a flat batch, for the length of one pass."""

    def __init__(self, slot: Slot, num_chain: int, tree: DraftTree, max_position: int) -> None:
        self.slot = slot
        self.num_chain = num_chain
        self.num_rows = num_chain + len(tree)
        self._tree = tree
        slot.reserve(self.num_rows)
        held = slot.length
        root = held + num_chain - 1
        # Nodes beyond the context are never accepted; they only must not crash a table of positions.
        self.positions = [*range(held, root + 1), *(min(root + depth, max_position) for depth in tree.depths())]
        self._masks: dict[tuple[int | None, int], Tensor | None] = {}

    def mask(self, window: int | None, repeats: int) -> Tensor | None:
        """Additive mask [1, 1, repeats * rows, length + rows], or None where everything is visible."""
        if window is not None and self.positions[-1] < window:
            window = None
        key = (window, repeats)
        if key not in self._masks:
            self._masks[key] = self._build_mask(window, repeats)
        return self._masks[key]

    def _build_mask(self, window: int | None, repeats: int) -> Tensor | None:
        if window is None and self.num_rows == 1:
            return None
        shape, held = self.slot.shape, self.slot.length
        # On the device: for a chunk of a long context this is large.
        bias = torch.zeros(self.num_rows, held + self.num_rows, dtype=shape.dtype, device=shape.device)
        bias[:, held:].masked_fill_(torch.from_numpy(~self._visible()).to(shape.device), float("-inf"))
        if window is not None:
            rows = torch.tensor(self.positions, device=shape.device)
            columns = torch.cat([torch.arange(held, device=shape.device), rows])
            bias.masked_fill_(rows[:, None] - columns[None, :] >= window, float("-inf"))
        return bias.repeat(repeats, 1)[None, None]

    def _visible(self) -> NDArray[np.bool_]:
        """[rows, rows] bool: entry (i, j) says that row i may look at row j of this pass."""
        visible = np.tri(self.num_rows, dtype=np.bool_)
        visible[self.num_chain :, self.num_chain :] = self._tree.ancestors()
        return visible


class FlatBatch:
    """The pieces of one pass, side by side."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        if len(self.pieces) == 1:
            return _attend_piece(self.pieces[0], layer, query, key[0], value[0], call)
        answers = []
        first = 0
        for piece in self.pieces:
            stop = first + piece.num_rows
            rows = slice(first, stop)
            answers.append(_attend_piece(piece, layer, query[:, :, rows], key[0, :, rows], value[0, :, rows], call))
            first = stop
        return torch.cat(answers, dim=1)


def _attend_piece(piece: Piece, layer: int, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
    """query [1, heads, n, dim], key and value [kv_heads, n, dim] -> [1, n, heads, value_dim]."""
    keys, values = piece.slot.write(layer, key, value)
    _, heads, num_rows, _ = query.shape
    if call.softcap is not None:
        out = _softcapped(piece, query[0], keys, values, call)
    elif num_rows <= _PACKED_ROWS:
        out = _packed(piece, query, keys, values, call)
    else:
        out = _expanded(piece, query, keys, values, call)
    return out.view(1, heads, num_rows, -1).transpose(1, 2)


def _packed(piece: Piece, query: Tensor, keys: Tensor, values: Tensor, call: Call) -> Tensor:
    """[1, heads, n, dim] -> [1, kv_heads, group * n, value_dim]; the mask is repeated, the keys are not."""
    kv_heads = keys.shape[0]
    group = query.shape[1] // kv_heads
    rows = query.reshape(1, kv_heads, -1, query.shape[3])
    mask = piece.mask(call.window, group)
    return scaled_dot_product_attention(rows, keys[None], values[None], attn_mask=mask, scale=call.scaling)


def _expanded(piece: Piece, query: Tensor, keys: Tensor, values: Tensor, call: Call) -> Tensor:
    """[1, heads, n, dim] -> [heads, n, value_dim]; the members of a group form the batch, over a view of the keys."""
    kv_heads, (_, heads, num_rows, dim) = keys.shape[0], query.shape
    group = heads // kv_heads
    rows = query.reshape(kv_heads, group, num_rows, dim).transpose(0, 1)
    mask = piece.mask(call.window, 1)
    out = scaled_dot_product_attention(
        rows, keys.expand(group, -1, -1, -1), values.expand(group, -1, -1, -1), attn_mask=mask, scale=call.scaling
    )
    return out.transpose(0, 1).reshape(heads, num_rows, -1)


def _softcapped(piece: Piece, query: Tensor, keys: Tensor, values: Tensor, call: Call) -> Tensor:
    """[heads, n, dim] -> [heads, n, value_dim], score by score (Gemma 2), a block of rows at a time."""
    assert call.softcap is not None
    heads, num_rows, dim = query.shape
    kv_heads, num_keys, _ = keys.shape
    grouped = query.reshape(kv_heads, -1, num_rows, dim)
    mask = piece.mask(call.window, 1)
    block = max(1, _SOFTCAP_SCORES // (heads * num_keys))
    answers = []
    for first in range(0, num_rows, block):
        rows = grouped[:, :, first : first + block]
        scores = torch.matmul(rows, keys[:, None].transpose(2, 3)) * call.scaling
        scores = torch.tanh(scores / call.softcap) * call.softcap
        if mask is not None:
            scores = scores + mask[0, :, first : first + block]
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        answers.append(torch.matmul(weights, values[:, None]))
    return torch.cat(answers, dim=2).reshape(heads, num_rows, -1)


def _outrider_slots(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slots: SlotAttention,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **extra: Any,  # whatever else a model passes to attention functions; the self-check at load judges the result
) -> tuple[Tensor, None]:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment] # nn.Module's attributes have no types
    return slots.attend(layer, query, key, value, Call(scale, softcap, sliding_window)), None


def _no_mask(*args: Any, **kwargs: Any) -> None:  # signature is transformers' mask functions'
    """The pieces bring their own masks."""


def register() -> None:
    """Make `outrider_slots` known to transformers; harmless when repeated."""
    AttentionInterface.register(IMPLEMENTATION, _outrider_slots)
    AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
