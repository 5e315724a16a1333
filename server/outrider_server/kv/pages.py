"""Pages of K/V rows: one arena for all sessions, in which block tables say where a session's rows lie.

    arena      page 0       page 1       page 2       page 3     [layers, pages, PAGE, kv_heads, key_dim + value_dim],
                                                                 for each stack of layers
    session a  rows 0..31                rows 32..63             block table 0, 2
    session b               rows 0..31                           block table 1

A session grows by pages, and its first ones become a shared prefix, without a copy. A page has one owner: a session or
a prefix. The arena is as large as the budget, or grows twofold where that has no limit. As in Kwon et al., "Efficient
Memory Management for Large Language Model Serving with PagedAttention" (2023).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import groupby, product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_proto.errors import UsageError
from outrider_server.kv.budget import KVShape, MemoryBudget, OutOfKVMemory
from outrider_server.kv.buffers import is_out_of_memory
from outrider_server.kv.rows import KVRows
from outrider_server.kv.size import show_bytes

PAGE = 32  # rows
_FIRST_PAGES = 16  # of an arena that grows


class PagedBuffer:
    """Rows in pages of an arena, in order, and their features beside it, page by page."""

    def __init__(
        self, pool: PagePool, width: int, pages: Sequence[int] = (), features: Sequence[NDArray[np.float32]] = ()
    ) -> None:
        self.pool = pool
        self.width = width
        self.pages = tuple(pages)
        self.features = tuple(features)  # [PAGE, width] each
        self.capacity = len(self.pages) * PAGE

    @property
    def num_bytes(self) -> int:
        return self.pool.bytes_of(self.capacity, self.width)

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """The block table."""
        return np.array(self.pages, dtype=np.int64)

    @cached_property
    def _places(self) -> Tensor:
        """Where the rows lie in the arena: [capacity] int64, on its device."""
        places = (self.table[:, None] * PAGE + np.arange(PAGE)).ravel()
        return torch.from_numpy(places).to(self.pool.shape.device)

    def layer_rows(self, layer: int, stop: int) -> tuple[Tensor, Tensor]:
        found = self.pool.pages(layer).flatten(0, 1).index_select(0, self._places[:stop]).transpose(0, 1)
        return self.pool.keys_and_values(layer, found)

    def rows(self, first: int, stop: int) -> list[tuple[Tensor, Tensor]]:
        places, pool = self._places[first:stop], self.pool
        return [
            pool.keys_and_values(stack.layers[0], rows.index_select(1, places).transpose(1, 2))
            for stack, rows in zip(pool.shape.stacks, pool.all_rows(), strict=True)
        ]

    @property
    def strides(self) -> tuple[int, int]:
        _, _, row, head, _ = self.pool.arenas[0].stride()
        return row, head

    def runs(self, first: int, stop: int) -> list[tuple[int, int, int, int]]:
        arena, values = self.pool.arenas[0], self.pool.shape.stacks[0].row.key_dim * 4
        row, step, runs = self.strides[0] * 4, arena.stride(0) * 4, list[tuple[int, int, int, int]]()
        while first < stop:
            page, begin = divmod(first, PAGE)
            count = min(PAGE - begin, stop - first)
            keys = arena.data_ptr() + (self.pages[page] * PAGE + begin) * row
            runs.append((keys, keys + values, step, count))
            first += count
        return runs

    # Inference mode: an arena that has grown during a pass is an inference tensor.
    @torch.inference_mode()
    def write(self, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        self.pool.write(layer, self._places[first : first + keys.shape[1]], keys, values)

    def move(self, sources: Sequence[int], first: int) -> None:
        self.pool.move([(self, sources, first)])

    def feature_rows(self, first: int, stop: int) -> NDArray[np.float32]:
        pages = self.features[first // PAGE : -(-stop // PAGE)] or (np.empty((0, self.width), np.float32),)
        return np.concatenate(pages)[first % PAGE :][: stop - first]

    def put_features(self, first: int, rows: NDArray[np.float32]) -> None:
        done = 0
        while done < len(rows):
            page, begin = divmod(first + done, PAGE)
            part = rows[done : done + PAGE - begin]
            self.features[page][begin : begin + len(part)] = part
            done += len(part)


class PagePool:
    """The arena and its free pages. Not thread-safe.

    Raises UsageError where the device has no room for an arena as large as the budget.
    """

    def __init__(self, shape: KVShape, budget: MemoryBudget) -> None:
        self.shape = shape
        self.budget = budget
        self.spare_bytes = 0  # no page is kept ready for a session of its size: all fit all
        self._free: list[int] = []  # the next one last
        # Keys and values in one row: one copy gathers both.
        self.arenas = [torch.empty(0, 0) for _ in shape.stacks]
        is_limited = budget.limit_bytes < sys.maxsize
        try:
            self._extend(budget.limit_bytes // (PAGE * shape.bytes_per_token) if is_limited else _FIRST_PAGES)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise UsageError(
                f"kv_memory={show_bytes(budget.limit_bytes)}: {shape.device} has no room for so many pages of K/V;"
                " give a smaller --kv-memory"
            ) from error

    @property
    def num_pages(self) -> int:
        return self.arenas[0].shape[1]

    def pages(self, layer: int) -> Tensor:
        """Return all pages of a layer: [pages, PAGE, kv_heads, key_dim + value_dim]."""
        stack, index = self.shape.place(layer)
        return self.arenas[stack][index]

    def all_rows(self) -> list[Tensor]:
        """Return all rows of each stack: [layers, pages * PAGE, kv_heads, key_dim + value_dim]."""
        return [arena.flatten(1, 2) for arena in self.arenas]

    def keys_and_values(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Split a layer's rows [..., key_dim + value_dim]; no copy."""
        stack, _ = self.shape.place(layer)
        key_dim = self.shape.stacks[stack].row.key_dim
        return rows[..., :key_dim], rows[..., key_dim:]

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store `keys`, `values` [kv_heads, n, dim] at places [n] of a layer, unless it keeps no rows."""
        if self.shape.keeps(layer):
            self.pages(layer).flatten(0, 1).index_copy_(0, places, torch.cat((keys, values), dim=-1).transpose(0, 1))

    # Inference mode as in PagedBuffer.write.
    @torch.inference_mode()
    def move(self, moves: Sequence[tuple[PagedBuffer, Sequence[int], int]]) -> None:
        """Copy rows `sources` of each buffer to its rows first, first + 1, ..., of all buffers at once."""
        # Their places are looked up on the host, or each buffer's indices would be sent to the device by themselves.
        sources = [_places_of(buffer, np.asarray(rows)) for buffer, rows, _ in moves]
        targets = [_places_of(buffer, first + np.arange(len(rows))) for buffer, rows, first in moves]
        ours, theirs = torch.from_numpy(np.stack((np.concatenate(targets), np.concatenate(sources)))).to(
            self.shape.device
        )
        for rows in self.all_rows():
            # index_select copies before index_copy_ writes: source and destination rows may overlap.
            rows.index_copy_(1, ours, rows.index_select(1, theirs))

    def bytes_of(self, num_rows: int, width: int) -> int:
        """Return the bytes of the pages that so many rows need."""
        # Features lie in the host's memory, which the budget of another device is not about.
        return _num_pages(num_rows) * PAGE * self.shape.row_bytes(width if self.shape.device.type == "cpu" else 0)

    def empty(self, width: int) -> PagedBuffer:
        """Return a buffer without rows."""
        return PagedBuffer(self, width)

    def missing(self, buffer: KVRows, num_rows: int) -> int:
        """Return how many rows to take so that grown() has room for `num_rows`; 0 where there is room."""
        return max(num_rows - buffer.capacity, 0)

    def wanted_bytes(self, buffer: KVRows, num_taken: int) -> int:
        """Return the bytes of what `buffer` becomes with so many rows taken."""
        return buffer.num_bytes + self.bytes_of(num_taken, buffer.width)

    def grown(self, buffer: KVRows, taken: KVRows, used: int) -> PagedBuffer:
        """Return a buffer of the pages of both, of which `used` rows are in use."""
        old, new = paged(buffer), paged(taken)
        return PagedBuffer(self, old.width, old.pages + new.pages, old.features + new.features)

    def without(self, buffer: KVRows, count: int) -> PagedBuffer:
        """Return a buffer without the first `count` rows, a multiple of PAGE, whose pages are given back."""
        first, rest = self.divided(buffer, count)
        self.give(first)
        return rest

    def divided(self, buffer: KVRows, count: int) -> tuple[PagedBuffer, PagedBuffer]:
        """Return the first `count` rows, a multiple of PAGE, and the rest as two buffers in place of `buffer`."""
        whole, (num_pages, odd) = paged(buffer), divmod(count, PAGE)
        assert not odd
        return (
            PagedBuffer(self, whole.width, whole.pages[:num_pages], whole.features[:num_pages]),
            PagedBuffer(self, whole.width, whole.pages[num_pages:], whole.features[num_pages:]),
        )

    # Inference mode as in PagedBuffer.write.
    @torch.inference_mode()
    def take(self, num_rows: int, width: int) -> PagedBuffer:
        """Return a buffer for at least `num_rows`. Raises OutOfKVMemory."""
        count, num_bytes = _num_pages(num_rows), self.bytes_of(num_rows, width)
        self.budget.take(num_bytes)
        try:
            if count > len(self._free):
                self._extend(max(self.num_pages, count - len(self._free)))
            features = [np.empty((PAGE, width), dtype=np.float32) for _ in range(count)]
        # The budget may allow more than the machine has: undo the count, and report it like a full budget.
        except (MemoryError, RuntimeError) as error:
            self.budget.give(num_bytes)
            if not is_out_of_memory(error):
                raise
            raise OutOfKVMemory(num_bytes) from error
        pages = [self._free.pop() for _ in range(count)]
        # Zeros: rows behind a session's own enter products with a weight of 0, and 0 * NaN is NaN. Not by an index of
        # pages, which to send would wait on a GPU for the pass under way.
        for (first, stop), arena in product(_runs(pages), self.arenas):
            arena[:, first:stop].zero_()
        return PagedBuffer(self, width, pages, features)

    def give(self, buffer: KVRows) -> None:
        """Take the pages of a buffer back."""
        self._free.extend(reversed(paged(buffer).pages))
        self.budget.give(buffer.num_bytes)

    free = give

    def fits_beside(
        self,
        staying: Collection[KVRows],
        leaving: Collection[KVRows],
        prefix_bytes: int,
        num_rows: int,
        width: int,
    ) -> bool:
        """Return whether take() succeeds once all is free but `staying`, and `prefix_bytes` of prefixes."""
        pinned = sum(buffer.num_bytes for buffer in staying) + prefix_bytes
        return pinned + self.bytes_of(num_rows, width) <= self.budget.limit_bytes

    def trim(self) -> None:
        """Do nothing: the arena stays."""

    def _extend(self, num_pages: int) -> None:
        """Add free pages. Moves the arena, if there is one."""
        shape, first = self.shape, self.num_pages
        extended = []
        for stack, old in zip(shape.stacks, self.arenas, strict=True):
            row = stack.row
            size = (len(stack.layers), first + num_pages, PAGE, row.kv_heads, row.key_dim + row.value_dim)
            # Not zeros: memory that no page has used yet is none that the machine has to find.
            arena = torch.empty(size, dtype=shape.dtype, device=shape.device)
            if first:
                arena[:, :first] = old
            extended.append(arena)
        self.arenas = extended
        self._free[:0] = reversed(range(first, first + num_pages))


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first and stop of each run of neighbors."""
    for _, run in groupby(enumerate(sorted(pages)), lambda placed: placed[1] - placed[0]):
        found = [page for _, page in run]
        yield found[0], found[-1] + 1


def _num_pages(num_rows: int) -> int:
    return -(-num_rows // PAGE)


def _places_of(buffer: PagedBuffer, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return buffer.table[rows // PAGE] * PAGE + rows % PAGE


def paged(buffer: KVRows) -> PagedBuffer:
    """Return a buffer of a memory in pages."""
    assert isinstance(buffer, PagedBuffer)
    return buffer
