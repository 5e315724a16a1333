"""Rows of evicted sessions in the host's memory: copied back when they go on, not computed again.

For a target on another device. What has been copied back is forgotten; where the memory is full, the oldest copies go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_server.kv.buffers import is_out_of_memory
from outrider_server.kv.slot import KVSlot


@dataclass(frozen=True, slots=True)
class RowCopy:
    """The first `length` rows of a session, on the host.

    `rows`: K and V [kv_heads, n, dim] of each layer that keeps rows; features [n, width]; n is `length` or more.
    """

    length: int
    rows: Mapping[int, tuple[Tensor, Tensor]]
    features: NDArray[np.float32]

    @classmethod
    def of(cls, slot: KVSlot, length: int) -> RowCopy:
        rows = {}
        # A layer at a time: gathering the pages of all would take as much again of the device's memory.
        for layer in (layer for stack in slot.shape.stacks for layer in stack.layers):
            parts = *slot.shared(layer), slot.buffer.layer_rows(layer, max(length - slot.start, 0))
            keys, values = (torch.cat(same, dim=1)[:, :length].cpu() for same in zip(*parts, strict=True))
            rows[layer] = keys, values
        return cls(length, rows, slot.features(0, length))

    @property
    def num_bytes(self) -> int:
        return sum(each.nbytes for both in self.rows.values() for each in both) + self.features.nbytes


class HostCopies:
    """Copies of at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self.restored_tokens = 0  # whose rows came back
        self._copies: dict[object, RowCopy] = {}  # the oldest first

    def keep(self, owner: object, slot: KVSlot, length: int) -> bool:
        """Copy the first `length` rows of a slot, where all the memory has room for them; return whether it had."""
        self.drop(owner)
        num_bytes = length * slot.shape.row_bytes(slot.width)
        if not 0 < num_bytes <= self._limit_bytes:
            return False
        # Before copying, or both would be held for a moment.
        while self.used_bytes + num_bytes > self._limit_bytes:
            self.drop(next(iter(self._copies)))
        try:
            self._copies[owner] = RowCopy.of(slot, length)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        self.used_bytes += num_bytes
        return True

    def truncate(self, owner: object, length: int) -> None:
        """Let only the first `length` rows of its copy count: the text has changed behind them."""
        if length <= 0:
            self.drop(owner)
        elif (copy := self._copies.get(owner)) is not None and length < copy.length:
            # The rest stays until the copy goes.
            self._copies[owner] = replace(copy, length=length)

    def restore(self, owner: object, slot: KVSlot) -> int:
        """Append what the slot lacks of its copy, for which it must have room; return how many rows. The copy goes."""
        if (copy := self.drop(owner)) is None:
            return 0
        num_rows = slot.append(copy.rows, copy.features, copy.length)
        self.restored_tokens += num_rows
        return num_rows

    def drop(self, owner: object) -> RowCopy | None:
        """Forget its copy, and return it."""
        if (copy := self._copies.pop(owner, None)) is not None:
            self.used_bytes -= copy.num_bytes
        return copy
