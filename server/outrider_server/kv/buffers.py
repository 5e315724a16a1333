"""Buffers for K/V rows and features, in slabs of equal buffers, and the pool that reuses them.

Every byte is counted in the budget.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray

from outrider_server.kv.budget import KVShape, MemoryBudget, OutOfKVMemory

_SMALLEST = 128  # rows of the smallest buffer
_SLAB_LANES = 16
_SLAB_BYTES = 64 * 2**20  # at most this at once: for a large model one buffer is a slab
_SLAB_SHARE = 8  # and at most one part in so many of the free budget


class BufferSlab:
    """Memory of several buffers of one size side by side, so that one product covers them all.

    Keys and values are [layers, lanes, capacity, kv_heads, dim].
    """

    def __init__(self, shape: KVShape, lanes: int, capacity: int, width: int) -> None:
        s = shape
        # Zeros, not empty: a product over the whole slab multiplies the rows behind a buffer's own by a weight of 0,
        # and 0 * NaN is NaN.
        self.keys = torch.zeros(s.layers, lanes, capacity, s.kv_heads, s.key_dim, dtype=s.dtype, device=s.device)
        self.values = torch.zeros(s.layers, lanes, capacity, s.kv_heads, s.value_dim, dtype=s.dtype, device=s.device)
        self.features: NDArray[np.float32] = np.empty((lanes, capacity, width), dtype=np.float32)
        self.capacity = capacity
        self.num_lanes = lanes
        self.num_spare = 0

    @property
    def num_bytes(self) -> int:
        tensors: int = self.keys.nbytes + self.values.nbytes
        return tensors + self.features.nbytes


class KVBuffer:
    """One lane of a slab: `capacity` rows of K/V, and as many rows of features on the CPU."""

    def __init__(self, slab: BufferSlab, lane: int) -> None:
        self.slab = slab
        self.lane = lane
        self.capacity = slab.capacity
        self.keys = slab.keys[:, lane].transpose(1, 2)  # [layers, kv_heads, capacity, dim]
        self.values = slab.values[:, lane].transpose(1, 2)
        self.features: NDArray[np.float32] = slab.features[lane]
        self.layer_keys = self.keys.unbind(0)
        self.layer_values = self.values.unbind(0)

    @property
    def num_bytes(self) -> int:
        tensors: int = self.keys.nbytes + self.values.nbytes
        return tensors + self.features.nbytes

    # Inference mode as in copy_rows.
    @torch.inference_mode()
    def wipe(self) -> None:
        """Set keys and values to zero: the former user may have left NaN there."""
        self.keys.zero_()
        self.values.zero_()

    # A buffer made during a pass consists of inference tensors, which cannot be written outside inference mode.
    @torch.inference_mode()
    def copy_rows(self, first: int, source: KVBuffer, source_first: int, count: int) -> None:
        """Copy rows from another buffer, or from this one where they do not overlap."""
        there, here = slice(source_first, source_first + count), slice(first, first + count)
        self.keys[:, :, here] = source.keys[:, :, there]
        self.values[:, :, here] = source.values[:, :, there]
        self.features[here] = source.features[there]


class BufferPool:
    """Buffers in a few sizes, so that one session's fits the next. Not thread-safe."""

    def __init__(self, shape: KVShape, budget: MemoryBudget) -> None:
        self.shape = shape
        self.budget = budget
        self.num_allocated = 0  # slabs since the start
        self.spare_bytes = 0  # of unused buffers; they count in the budget like all others
        self._spare: dict[tuple[int, int], list[KVBuffer]] = defaultdict(list)

    def row_bytes(self, width: int) -> int:
        return self.shape.bytes_per_token + width * np.dtype(np.float32).itemsize

    def take(self, num_rows: int, width: int) -> KVBuffer:
        """Return a buffer for at least `num_rows`. Raises OutOfKVMemory."""
        rounded = rounded_capacity(num_rows)
        if spare := self._spare.get((rounded, width)):
            buffer = spare.pop()
            self.spare_bytes -= buffer.num_bytes
            buffer.slab.num_spare -= 1
            if buffer.slab.num_lanes > 1:
                buffer.wipe()
            return buffer
        lane_bytes = rounded * self.row_bytes(width)
        lanes = min(_SLAB_LANES, max(min(_SLAB_BYTES, self.budget.free_bytes // _SLAB_SHARE) // lane_bytes, 1))
        try:
            first, *others = self._allocate(lanes, rounded, width)
        except OutOfKVMemory:
            return self.take_exactly(num_rows, width)
        for buffer in reversed(others):  # the next one taken lies beside the first
            self.give(buffer)
        return first

    def take_exactly(self, num_rows: int, width: int) -> KVBuffer:
        """Return a buffer for exactly `num_rows`. Raises OutOfKVMemory."""
        return self._allocate(1, num_rows, width)[0]

    def give(self, buffer: KVBuffer) -> None:
        """Take a buffer back; one of an odd size is freed, since no other session could use it."""
        if buffer.capacity == rounded_capacity(buffer.capacity):
            self._spare[buffer.capacity, buffer.features.shape[1]].append(buffer)
            self.spare_bytes += buffer.num_bytes
            buffer.slab.num_spare += 1
        else:
            self.budget.give(buffer.num_bytes)

    def has_room(self, num_rows: int, width: int) -> bool:
        """Return whether take() would need nothing that is kept ready for others."""
        rounded = rounded_capacity(num_rows)
        return bool(self._spare.get((rounded, width))) or rounded * self.row_bytes(width) <= self.budget.free_bytes

    def has_spare(self, num_rows: int, width: int, within: Collection[BufferSlab]) -> bool:
        """Return whether those slabs have an unused buffer for `num_rows`."""
        return any(buffer.slab in within for buffer in self._spare.get((rounded_capacity(num_rows), width), ()))

    def trim(self) -> None:
        """Free the slabs of which no buffer is in use."""
        for key, buffers in list(self._spare.items()):
            kept = [buffer for buffer in buffers if buffer.slab.num_spare < buffer.slab.num_lanes]
            freed = sum(buffer.num_bytes for buffer in buffers) - sum(buffer.num_bytes for buffer in kept)
            self._spare[key] = kept
            self.spare_bytes -= freed
            self.budget.give(freed)

    def give_back(self) -> None:
        """Free them, and let others on the device have the memory."""
        self.trim()
        # Not at every eviction: it waits for the device, and the next allocations then have to ask the driver. Where
        # torch itself runs out it does this before it fails.
        if self.shape.device.type == "cuda":
            torch.cuda.empty_cache()

    def _allocate(self, lanes: int, capacity: int, width: int) -> list[KVBuffer]:
        num_bytes = lanes * capacity * self.row_bytes(width)
        # Spare slabs count in the budget: give them back before refusing.
        if num_bytes > self.budget.free_bytes:
            self.trim()
        self.budget.take(num_bytes)
        try:
            slab = BufferSlab(self.shape, lanes, capacity, width)
        # The budget may allow more than the machine has: undo the count, and report it like a full budget.
        except (MemoryError, RuntimeError) as error:
            self.budget.give(num_bytes)
            if not is_out_of_memory(error):
                raise
            self.trim()
            raise OutOfKVMemory(num_bytes) from error
        self.num_allocated += 1
        return [KVBuffer(slab, lane) for lane in range(lanes)]


def empty_buffer(shape: KVShape, width: int) -> KVBuffer:
    """Return a buffer without rows."""
    return KVBuffer(BufferSlab(shape, 1, 0, width), 0)


def unlimited_pool(shape: KVShape) -> BufferPool:
    """Return a pool limited only by the machine's memory, for a single slot."""
    return BufferPool(shape, MemoryBudget(sys.maxsize))


def rounded_capacity(num_rows: int) -> int:
    """Return the next of 128, 192, 256, 384, 512, 768, ..."""
    size = _SMALLEST
    while size < num_rows:
        size = size * 3 // 2 if size.bit_count() == 1 else size * 4 // 3
    return size


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error says that the machine has no memory left."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError, OutOfKVMemory)) or (
        # torch raises a plain RuntimeError when a CPU allocation fails, and an error of the device where CUDA's own
        # libraries find no memory: only the message tells them apart.
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("can't allocate memory", "error: out of memory"))
    )
