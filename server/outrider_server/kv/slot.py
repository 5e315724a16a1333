"""The slot: one session's K/V rows in every layer, and its feature rows. Knows nothing of tokens, trees or attention.

    row      0 .. start-1    start .. length-1     length .. length+pending-1
             a prefix that   committed tokens,     the pass under way: chain (context, root), then tree nodes
             others share    its own               in their own order

A pass writes its rows behind the committed ones layer by layer; `commit` keeps the chain and the accepted path and
forgets the rest. A pass that fails before that leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_server.kv.budget import KVShape, OutOfKVMemory
from outrider_server.kv.buffers import BufferPool, KVBuffer, empty_buffer, unlimited_pool
from outrider_server.kv.prefix import Prefix

Take = Callable[[int, int], KVBuffer]  # rows and width of the features; raises OutOfKVMemory


class KVSlot:
    """One session's rows: a shared prefix, then a buffer of its own that grows from a pool."""

    def __init__(self, pool: BufferPool | KVShape, width: int = 0) -> None:
        self._pool = pool if isinstance(pool, BufferPool) else unlimited_pool(pool)
        self.shape = self._pool.shape
        self.width = width
        self.length = 0
        self.prefix: Prefix | None = None
        self.buffer = self._none = empty_buffer(self.shape, width)

    @property
    def start(self) -> int:
        """Index of its first own row, behind the shared prefix."""
        return 0 if self.prefix is None else self.prefix.stop

    @property
    def num_bytes(self) -> int:
        """Bytes of its own buffer."""
        return self.buffer.num_bytes

    @property
    def holds_any(self) -> bool:
        """True if clear() would free anything."""
        return self.buffer is not self._none or self.prefix is not None

    def reserve(self, num_rows: int, take: Take | None = None) -> None:
        """Make room for `num_rows` rows behind the committed ones, with `take` where given.

        Raises OutOfKVMemory and changes nothing then.
        """
        needed = self.length - self.start + num_rows
        if needed > self.buffer.capacity:
            grown = (take or self._pool.take)(needed, self.width)
            # Copy before giving back: the next session may take the old buffer at once and wipe it.
            grown.copy_rows(0, self.buffer, 0, self.length - self.start)
            self._give()
            self.buffer = grown

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write `keys`, `values` [kv_heads, n, dim] behind the committed rows; return all own rows of the layer.

        Room for n rows must have been reserved.
        """
        first = self.length - self.start
        stop = first + keys.shape[1]
        all_keys = self.buffer.layer_keys[layer][:, :stop]
        all_values = self.buffer.layer_values[layer][:, :stop]
        all_keys[:, first:].copy_(keys)
        all_values[:, first:].copy_(values)
        return all_keys, all_values

    def shared(self, layer: int) -> list[tuple[Tensor, Tensor]]:
        """Return K and V of `layer` for each shared prefix, in order: [kv_heads, n, dim] each."""
        links = () if self.prefix is None else self.prefix.chain()
        return [(link.buffer.layer_keys[layer], link.buffer.layer_values[layer]) for link in links]

    def commit(self, num_chain: int, path: Sequence[int] = ()) -> None:
        """Keep the first `num_chain` rows of the pass and, of the tree rows behind them, those in `path`, in order."""
        in_place = 0  # leading path nodes that lie where they belong already
        while in_place < len(path) and path[in_place] == in_place:
            in_place += 1
        tree = self.length - self.start + num_chain
        first = tree + in_place
        # index_select copies before the assignment writes: source and destination rows may overlap.
        if moved := path[in_place:]:
            rows = torch.tensor(moved, device=self.shape.device) + tree
            for buffer in (self.buffer.keys, self.buffer.values):
                buffer[:, :, first : first + len(moved)] = buffer.index_select(2, rows)
        self.length += num_chain + len(path)

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows, or fewer: a shared prefix that ends beyond them goes as a whole."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length={length}: the slot holds {self.length} rows")
        if length >= self.start:
            self.length = length
            return
        while self.prefix is not None and length < self.prefix.stop:
            self._end_with(self.prefix.parent)
        self.length = self.start

    def rows(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return K and V rows first .. stop-1 of all layers: [layers, kv_heads, stop - first, dim]."""
        parts = self._parts(first, stop)
        if len(parts) == 1:
            buffer, begin, end = parts[0]
            return buffer.keys[:, :, begin:end], buffer.values[:, :, begin:end]
        keys = [buffer.keys[:, :, begin:end] for buffer, begin, end in parts]
        values = [buffer.values[:, :, begin:end] for buffer, begin, end in parts]
        return torch.cat(keys, dim=2), torch.cat(values, dim=2)

    def put_features(self, first: int, rows: NDArray[np.float32]) -> None:
        """Store the feature rows of its own positions first, first + 1, ..."""
        begin = first - self.start
        self.buffer.features[begin : begin + len(rows)] = rows

    def features(self, first: int, stop: int) -> NDArray[np.float32]:
        """Return a copy of the feature rows of positions first .. stop-1."""
        # Always a copy: the event loop still encodes these rows when the buffer may have a new owner.
        return np.concatenate([buffer.features[begin:end] for buffer, begin, end in self._parts(first, stop)])

    def attach(self, prefix: Prefix) -> None:
        """Begin with `prefix`, and drop all former rows."""
        self._end_with(prefix)
        self.length = prefix.stop

    def rebase(self, prefix: Prefix) -> None:
        """Share `prefix` in place of its own first rows, which are equal; keep the rows behind them."""
        # All rows of the buffer are kept, also uncommitted ones: this can happen on another session's behalf, in the
        # middle of a pass.
        shift = prefix.stop - self.start
        own = self.buffer.capacity - shift
        try:
            buffer = self._pool.take(max(self.buffer.capacity - shift, 1), self.width)
        except OutOfKVMemory:
            buffer = self.buffer
            _shift(buffer, shift, own)
        else:
            buffer.copy_rows(0, self.buffer, shift, own)
            self._give()
        self.buffer = buffer
        self._end_with(prefix)

    def unshare(self, base: Prefix | None, num_rows: int) -> None:
        """Copy what it shares behind `base`, with room for `num_rows` rows there.

        Uses free memory only, since it runs before every request. Raises OutOfKVMemory and changes nothing then.
        """
        first = 0 if base is None else base.stop
        parts = self._parts(first, self.length)
        is_enough = self.length == self.start and num_rows <= self.buffer.capacity
        if not is_enough and not self._pool.has_room(num_rows, self.width):
            raise OutOfKVMemory(num_rows * self._pool.row_bytes(self.width))
        buffer = self.buffer if is_enough else self._pool.take(num_rows, self.width)
        done = 0
        for source, begin, end in parts:
            buffer.copy_rows(done, source, begin, end - begin)
            done += end - begin
        if buffer is not self.buffer:
            self._give()
            self.buffer = buffer
        self._end_with(base)

    def clear(self) -> None:
        """Drop all rows."""
        self._give()
        self.buffer = self._none
        self._end_with(None)
        self.length = 0

    def _end_with(self, prefix: Prefix | None) -> None:
        for ending, by in ((prefix, 1), (self.prefix, -1)):
            if ending is not None:
                ending.users += by
                for link in ending.chain():
                    link.num_slots += by
        self.prefix = prefix

    def _give(self) -> None:
        if self.buffer.capacity:
            self._pool.give(self.buffer)

    def _parts(self, first: int, stop: int) -> list[tuple[KVBuffer, int, int]]:
        """Return where rows first .. stop-1 lie: at least one (buffer, begin, end)."""
        parts: list[tuple[KVBuffer, int, int]] = []
        for link in self.prefix.chain() if self.prefix and first < self.prefix.stop else ():
            begin, end = max(first, link.start), min(stop, link.stop)
            if begin < end:
                parts.append((link.buffer, begin - link.start, end - link.start))
        if stop > self.start or not parts:
            start = self.start
            parts.append((self.buffer, max(first, start) - start, max(stop, start) - start))
        return parts


def _shift(buffer: KVBuffer, by: int, count: int) -> None:
    """Move rows by .. by+count-1 to the beginning, in place.

    This runs when there is no memory for a copy.
    """
    # Blocks of `by` rows never overlap their destination, which copy_rows does not allow.
    for first in range(0, count, by):
        buffer.copy_rows(first, buffer, first + by, min(by, count - first))
