"""The slot: one session's K/V rows in every layer. Knows nothing of tokens, trees or attention.

    row      0 .. length-1        length .. length+pending-1
             committed tokens     the pass under way: chain (context, root), then tree nodes in their own order

A pass writes its rows behind the committed ones layer by layer; `commit` keeps the chain and the accepted path and
forgets the rest. A pass that fails before that leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one row of K/V looks like, equal in all layers of a target."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return self.layers * self.kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


class Slot:
    """Preallocated K/V of one session, growing by doubling."""

    def __init__(self, shape: KVShape) -> None:
        self.shape = shape
        self.length = 0
        self._allocate(_FIRST_CAPACITY)

    def reserve(self, num_rows: int) -> None:
        """Make room for `num_rows` rows behind the committed ones."""
        needed = self.length + num_rows
        if needed > self._capacity:
            old_keys, old_values = self.rows(0, self.length)
            self._allocate(max(needed, 2 * self._capacity))
            self._keys[:, :, : self.length] = old_keys
            self._values[:, :, : self.length] = old_values

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put `keys`, `values` [kv_heads, n, dim] behind the committed rows of `layer`; answer all rows up to them.

        Room for n rows must have been reserved.
        """
        stop = self.length + keys.shape[1]
        all_keys = self._layer_keys[layer][:, :stop]
        all_values = self._layer_values[layer][:, :stop]
        all_keys[:, self.length :].copy_(keys)
        all_values[:, self.length :].copy_(values)
        return all_keys, all_values

    def commit(self, num_chain: int, path: Sequence[int] = ()) -> None:
        """Keep the first `num_chain` rows of the pass and, of the tree rows behind them, those in `path`, in order."""
        in_place = 0  # leading path nodes that lie where they belong already
        while in_place < len(path) and path[in_place] == in_place:
            in_place += 1
        first = self.length + num_chain + in_place
        if moved := path[in_place:]:
            rows = torch.tensor(moved, device=self.shape.device) + (self.length + num_chain)
            for store in (self._keys, self._values):
                store[:, :, first : first + len(moved)] = store.index_select(2, rows)
        self.length = first + len(moved)

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length={length}: the slot holds {self.length} rows")
        self.length = length

    def rows(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """Views of K and V rows first .. stop-1 of all layers: [layers, kv_heads, stop - first, dim]."""
        return self._keys[:, :, first:stop], self._values[:, :, first:stop]

    def _allocate(self, capacity: int) -> None:
        s = self.shape
        self._capacity = capacity
        self._keys = torch.empty(s.layers, s.kv_heads, capacity, s.key_dim, dtype=s.dtype, device=s.device)
        self._values = torch.empty(s.layers, s.kv_heads, capacity, s.value_dim, dtype=s.dtype, device=s.device)
        self._layer_keys = self._keys.unbind(0)
        self._layer_values = self._values.unbind(0)
