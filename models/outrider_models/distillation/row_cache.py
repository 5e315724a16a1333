"""Keys and values of rows that stand at different lengths, in memory that is never copied to grow by a token."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from outrider_proto.errors import UsageError

_FULL, _SLIDING = "full_attention", "sliding_attention"
_ATTENTION = "outrider_rows"
_TOGETHER = 8  # rows that are read up to the longest one's end
_GROWTH = 256  # positions by which memory grows


class RowCache:
    """The cache of a batch of rows, each written where it stands; `layers` is what a model takes.

    Raises UsageError for layers of other kinds than full and sliding attention.
    """

    def __init__(self, model: PreTrainedModel, batch: int) -> None:
        config = model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or [_FULL] * config.num_hidden_layers
        if other := sorted(set(kinds) - {_FULL, _SLIDING}):
            raise UsageError(f"the target has layers of {', '.join(other)}: need attention layers alone")
        self._window: int | None = getattr(config, "sliding_window", None)
        self._by_kind = _SLIDING in kinds
        self._place = _Place(batch)
        self._layers = [_RowLayer(self._place) for _ in kinds]
        self.layers = Cache(layers=[*self._layers])
        if config._attn_implementation in ("sdpa", _ATTENTION):  # others may do more, as cap their scores
            AttentionInterface.register(_ATTENTION, self._place.attend)
            model.set_attn_implementation(_ATTENTION)

    def prepare(self, first: int, positions: Tensor, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Note that the next pass is over rows from `first` on, at `positions` [n, T]; return its attention masks."""
        longest = int(positions.max()) + 1
        self._place.first, self._place.positions, self._place.longest = first, positions, longest
        self._place.lengths = [int(some.max()) + 1 for some in torch.split(positions, _TOGETHER)]
        distance = positions[:, None, :, None] - torch.arange(longest, device=positions.device)
        full = _additive(distance >= 0, dtype)
        if self._window is None:
            return full
        sliding = _additive((distance >= 0) & (distance < self._window), dtype)
        return {_FULL: full, _SLIDING: sliding} if self._by_kind else sliding

    def move(self, source: int, to: int, length: int) -> None:
        """Copy the first `length` positions of one row over another's."""
        for held in (held for layer in self._layers for held in layer.buffers.values()):
            held[to, :, :length] = held[source, :, :length]


class _Place:
    """Where the next pass writes: `positions` [n, T] of rows from `first` on, the last being `longest` - 1."""

    def __init__(self, batch: int) -> None:
        self.batch, self.first, self.longest = batch, 0, 0
        self.positions = torch.zeros(0, 0, dtype=torch.int64)
        self.lengths: list[int] = []  # the longest of each _TOGETHER rows

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **others: Any
    ) -> tuple[Tensor, None]:
        """Attend from query [n, heads, T, width] to key and value [n, kv_heads, length, width]; return [n, T, ...].

        transformers' way copies the keys and values of all rows for every head that shares them, and reads all rows up
        to the longest one's end: several times slower on a CPU.
        """
        n, heads, length, width = query.shape
        kv_heads = key.shape[1]
        if length > 1:
            shared = heads != kv_heads
            made = F.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=shared)
            return made.transpose(1, 2).contiguous(), None
        # The heads that share a key are as several queries at one position.
        grouped = query.view(n, kv_heads, heads // kv_heads, width)
        parts = [
            F.scaled_dot_product_attention(
                grouped[first : first + _TOGETHER],
                key[first : first + _TOGETHER, :, :longest],
                value[first : first + _TOGETHER, :, :longest],
                mask[first : first + _TOGETHER, :, :, :longest],
                scale=scaling,
            )
            for first, longest in zip(range(0, n, _TOGETHER), self.lengths, strict=True)
        ]
        return torch.cat(parts).reshape(n, 1, heads, -1), None


class _RowLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers
    def __init__(self, place: _Place) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers
        self._place = place
        self.buffers: dict[str, Tensor] = {}  # "keys" and "values", each [batch, heads, room, width]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values [n, heads, T, width]; return those of the same rows up to the longest one's end."""
        return self._written("keys", key_states), self._written("values", value_states)

    def _written(self, name: str, states: Tensor) -> Tensor:
        place, old = self._place, self.buffers.get(name)
        if old is None or old.shape[2] < place.longest:
            room = -(-place.longest // _GROWTH) * _GROWTH
            # Zeros: a masked key of NaN would still make attention NaN.
            new = states.new_zeros(place.batch, states.shape[1], room, states.shape[3])
            if old is not None:
                new[:, :, : old.shape[2]] = old
            self.buffers[name] = new
        held = self.buffers[name][place.first : place.first + len(states)]
        held[torch.arange(len(states), device=held.device)[:, None], :, place.positions] = states.transpose(1, 2)
        return held[:, :, : place.longest]


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, torch.finfo(dtype).min)
