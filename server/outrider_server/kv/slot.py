"""The slot: one session's K/V rows in every layer, and its feature rows. Knows nothing of tokens, trees or attention.

    row      0 .. start-1    start .. length-1     length .. length+pending-1
             a prefix that   committed tokens,     the pass under way: chain (context, root), then tree nodes
             others share    its own               in their own order

A pass writes its rows behind the committed ones layer by layer; `commit` keeps the chain and the accepted path and
forgets the rest. A pass that fails before that leaves no trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_server.kv.budget import KVShape, MemoryBudget, OutOfKVMemory
from outrider_server.kv.buffers import BufferPool, KVBuffer
from outrider_server.kv.pages import PagePool, paged
from outrider_server.kv.prefix import Prefix
from outrider_server.kv.rows import KVRows

RowPool: TypeAlias = BufferPool | PagePool
LayerTensors: TypeAlias = Tensor | list[Tensor]  # one of all layers, or one of each
Take = Callable[[int, int], KVRows]  # rows and width of the features; raises OutOfKVMemory


class KVSlot:
    """One session's rows: a shared prefix, then a buffer of its own that grows from a pool.

    With a shape in place of the pool, only the machine's memory limits it.
    """

    def __init__(self, pool: RowPool | KVShape, width: int = 0) -> None:
        self._pool = BufferPool(pool, MemoryBudget(sys.maxsize)) if isinstance(pool, KVShape) else pool
        self.shape = self._pool.shape
        self.width = width
        self.length = 0
        self.prefix: Prefix | None = None
        self.buffer: KVRows = self._pool.empty(width)

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
        return self.buffer.capacity > 0 or self.prefix is not None

    def reserve(self, num_rows: int, take: Take | None = None) -> None:
        """Make room for `num_rows` rows behind the committed ones, with `take` where given.

        Raises OutOfKVMemory and changes nothing then.
        """
        used = self.length - self.start
        if missing := self._pool.missing(self.buffer, used + num_rows):
            self.buffer = self._pool.grown(self.buffer, (take or self._pool.take)(missing, self.width), used)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write `keys`, `values` [kv_heads, n, dim] behind the committed rows; return all own rows of the layer.

        Room for n rows must have been reserved. A layer that reads another's rows writes none.
        """
        first = self.length - self.start
        if self.shape.keeps(layer):
            self.buffer.write(layer, first, keys, values)
        return self.buffer.layer_rows(layer, first + keys.shape[1])

    def shared(self, layer: int) -> list[tuple[Tensor, Tensor]]:
        """Return K and V of `layer` for each shared prefix, in order: [kv_heads, n, dim] each."""
        links = () if self.prefix is None else self.prefix.chain()
        return [link.buffer.layer_rows(layer, len(link.tokens)) for link in links]

    def page_table(self) -> NDArray[np.int64]:
        """Return the pages of its rows and of its room behind them, in order."""
        links = () if self.prefix is None else self.prefix.chain()
        return np.concatenate([paged(buffer).table for buffer in (*(link.buffer for link in links), self.buffer)])

    def commit(self, num_chain: int, path: Sequence[int] = (), *, placed: bool = False) -> None:
        """Keep the first `num_chain` rows of the pass and, of the tree rows behind them, those in `path`, in order.

        `placed`: they have been moved there already.
        """
        if not placed and (move := self.path_move(num_chain, path)):
            self.buffer.move(*move)
        self.length += num_chain + len(path)

    def path_move(self, num_chain: int, path: Sequence[int]) -> tuple[list[int], int] | None:
        """Return which of its buffer's rows a commit moves, and where to the first of them; None for none."""
        in_place = 0  # leading path nodes that lie where they belong already
        while in_place < len(path) and path[in_place] == in_place:
            in_place += 1
        tree = self.length - self.start + num_chain
        moved = [tree + node for node in path[in_place:]]
        return (moved, tree + in_place) if moved else None

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows, or fewer: a shared prefix that ends beyond them goes as a whole."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length={length}: the slot holds {self.length} rows")
        if length >= self.start:
            self.length = length
            return
        while self.prefix is not None and length < self.prefix.stop:
            self.end_with(self.prefix.parent)
        self.length = self.start

    def rows(self, first: int, stop: int) -> tuple[LayerTensors, LayerTensors]:
        """Return K and V rows first .. stop-1 of all layers: [layers, kv_heads, stop - first, dim].

        Where layers differ: a list of a layer's each.
        """
        parts = [buffer.rows(begin, end) for buffer, begin, end in self._parts(first, stop)]
        stacks = [
            (torch.cat([keys for keys, _ in same], dim=2), torch.cat([values for _, values in same], dim=2))
            if len(same) > 1
            else same[0]
            for same in zip(*parts, strict=True)
        ]
        if len(stacks) == 1 and not self.shape.readers:
            return stacks[0]
        places = [self.shape.place(layer) for layer in range(len(self.shape.rows))]
        return [stacks[stack][0][index] for stack, index in places], [
            stacks[stack][1][index] for stack, index in places
        ]

    def append(self, rows: Mapping[int, tuple[Tensor, Tensor]], features: NDArray[np.float32], stop: int) -> int:
        """Commit rows length .. stop-1 of others that begin with the same text; return their number.

        `rows`: K and V [kv_heads, n, dim] of each layer that keeps rows, on the host, as features [n, width] are. Room
        must have been reserved.
        """
        first, begin = self.length, self.length - self.start
        if first >= stop:
            return 0
        for layer, (keys, values) in rows.items():
            own = (each[:, first:stop].to(self.shape.device) for each in (keys, values))
            self.buffer.write(layer, begin, *own)
        self.length = stop
        self.put_features(first, features[first:stop])
        return stop - first

    def put_features(self, first: int, rows: NDArray[np.float32]) -> None:
        """Store the feature rows of its own positions first, first + 1, ..."""
        self.buffer.put_features(first - self.start, rows)

    def features(self, first: int, stop: int) -> NDArray[np.float32]:
        """Return a copy of the feature rows of positions first .. stop-1."""
        # Always a copy: the event loop still encodes these rows when the buffer may have a new owner.
        return np.concatenate([buffer.feature_rows(begin, end) for buffer, begin, end in self._parts(first, stop)])

    def attach(self, prefix: Prefix) -> None:
        """Begin with `prefix`, and drop all former rows."""
        self.end_with(prefix)
        self.length = prefix.stop

    def rebase(self, prefix: Prefix) -> None:
        """Share `prefix` in place of its own first rows, which are equal; keep the rows behind them."""
        # All rows of the buffer are kept, also uncommitted ones: this can happen on another session's behalf, in the
        # middle of a pass.
        if shift := prefix.stop - self.start:
            self.buffer = self._pool.without(self.buffer, shift)
        self.end_with(prefix)

    def hand_over(self, num_rows: int) -> KVRows:
        """Take the first own rows, pages, for a prefix, which it must begin with at once."""
        assert isinstance(self._pool, PagePool)
        first, self.buffer = self._pool.divided(self.buffer, num_rows)
        return first

    def unshare(self, base: Prefix | None, num_rows: int) -> None:
        """Copy what it shares behind `base`, with room for `num_rows` rows there.

        Uses free memory only, since it runs before every request. Raises OutOfKVMemory and changes nothing then.
        """
        assert isinstance(self._pool, BufferPool)  # pages are never copied
        first = 0 if base is None else base.stop
        parts = self._parts(first, self.length)
        is_enough = self.length == self.start and num_rows <= self.buffer.capacity
        if not is_enough and not self._pool.has_room(num_rows, self.width):
            raise OutOfKVMemory(self._pool.bytes_of(num_rows, self.width))
        buffer = self.buffer if is_enough else self._pool.take(num_rows, self.width)
        assert isinstance(buffer, KVBuffer)
        done = 0
        for source, begin, end in parts:
            buffer.copy_rows(done, source, begin, end - begin)
            done += end - begin
        if buffer is not self.buffer:
            self._pool.give(self.buffer)
            self.buffer = buffer
        self.end_with(base)

    def clear(self) -> None:
        """Drop all rows."""
        if self.buffer.capacity:
            self._pool.give(self.buffer)
            self.buffer = self._pool.empty(self.width)
        self.end_with(None)
        self.length = 0

    def end_with(self, prefix: Prefix | None) -> None:
        """Begin with this prefix, which ends where its own rows begin."""
        for ending, by in ((prefix, 1), (self.prefix, -1)):
            if ending is not None:
                ending.users += by
                for link in ending.chain():
                    link.num_slots += by
        self.prefix = prefix

    def _parts(self, first: int, stop: int) -> list[tuple[KVRows, int, int]]:
        """Return where rows first .. stop-1 lie: at least one (buffer, begin, end)."""
        parts: list[tuple[KVRows, int, int]] = []
        for link in self.prefix.chain() if self.prefix and first < self.prefix.stop else ():
            begin, end = max(first, link.start), min(stop, link.stop)
            if begin < end:
                parts.append((link.buffer, begin - link.start, end - link.start))
        if stop > self.start or not parts:
            start = self.start
            parts.append((self.buffer, max(first, start) - start, max(stop, start) - start))
        return parts
