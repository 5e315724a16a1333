"""Buffers for K/V rows and features, in slabs of equal buffers, and the pool that reuses them.

Every byte is counted in the budget.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_server.kv.budget import KVShape, LayerStack, MemoryBudget, OutOfKVMemory
from outrider_server.kv.rows import KVRows

_SMALLEST = 128  # rows of the smallest buffer
_SLAB_LANES = 16
_SLAB_BYTES = 512 * 2**20  # at most this at once: for a large model one buffer is a slab
_SLAB_SHARE = 8  # and at most one part in so many of the free budget


class BufferSlab:
    """Memory of several buffers of one size side by side, so that one product covers them all.

    Keys and values of each stack of layers are [layers, lanes, capacity, kv_heads, dim].
    """

    def __init__(self, shape: KVShape, lanes: int, capacity: int, width: int) -> None:
        self.shape = shape

        def empty_rows(stack: LayerStack, dim: int) -> Tensor:
            # Zeros, not empty: a product over the whole slab multiplies the rows behind a buffer's own by a weight of
            # 0, and 0 * NaN is NaN.
            size = (len(stack.layers), lanes, capacity, stack.row.kv_heads, dim)
            if shape.device.type != "cpu" or 0 in size:
                return torch.zeros(size, dtype=shape.dtype, device=shape.device)
            # The system's own zeros: a lane takes no memory before it is written to.
            zeros = np.zeros(math.prod(size) * shape.dtype.itemsize, dtype=np.uint8)
            return torch.from_numpy(zeros).view(shape.dtype).view(size)

        self.stacks = [
            (empty_rows(stack, stack.row.key_dim), empty_rows(stack, stack.row.value_dim)) for stack in shape.stacks
        ]
        self.features: NDArray[np.float32] = np.empty((lanes, capacity, width), dtype=np.float32)
        self.capacity = capacity
        self.num_lanes = lanes
        self.num_spare = 0

    @property
    def num_bytes(self) -> int:
        return _num_bytes(self.stacks) + self.features.nbytes

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return K and V of a layer: [lanes, capacity, kv_heads, dim] each."""
        stack, index = self.shape.place(layer)
        keys, values = self.stacks[stack]
        return keys[index], values[index]


class KVBuffer:
    """One lane of a slab: `capacity` rows of K/V, and as many rows of features on the CPU."""

    def __init__(self, slab: BufferSlab, lane: int) -> None:
        self.slab = slab
        self.lane = lane
        self.is_fresh = True  # zeros, of pages that the system has not made yet
        self.capacity, self.width = slab.capacity, int(slab.features.shape[2])
        self.features: NDArray[np.float32] = slab.features[lane]
        # Of each stack of layers [layers, kv_heads, capacity, dim], and of each layer.
        self._stacks = [
            (keys[:, lane].transpose(1, 2), values[:, lane].transpose(1, 2)) for keys, values in slab.stacks
        ]
        by_stack = [(keys.unbind(0), values.unbind(0)) for keys, values in self._stacks]
        places = map(slab.shape.place, range(len(slab.shape.rows)))
        self._layers = [(by_stack[stack][0][index], by_stack[stack][1][index]) for stack, index in places]

    @property
    def num_bytes(self) -> int:
        return _num_bytes(self._stacks) + self.features.nbytes

    def layer_rows(self, layer: int, stop: int) -> tuple[Tensor, Tensor]:
        keys, values = self._layers[layer]
        return keys[:, :stop], values[:, :stop]

    def rows(self, first: int, stop: int) -> list[tuple[Tensor, Tensor]]:
        return [(keys[:, :, first:stop], values[:, :, first:stop]) for keys, values in self._stacks]

    @property
    def strides(self) -> tuple[int, int]:
        _, _, row, head, _ = self.slab.stacks[0][0].stride()
        return row, head

    def runs(self, first: int, stop: int) -> list[tuple[int, int, int, int]]:
        at = (self.lane * self.capacity + first) * self.strides[0]
        keys, values = self.slab.stacks[0]
        step = keys.stride(0) * keys.itemsize
        return [(keys.data_ptr() + at * keys.itemsize, values.data_ptr() + at * keys.itemsize, step, stop - first)]

    def write(self, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        stop = first + keys.shape[1]
        own_keys, own_values = self._layers[layer]
        own_keys[:, first:stop].copy_(keys)
        own_values[:, first:stop].copy_(values)

    def move(self, sources: Sequence[int], first: int) -> None:
        # index_select copies before the assignment writes: source and destination rows may overlap.
        rows = torch.tensor(sources, device=self.slab.shape.device)
        for tensor in chain.from_iterable(self._stacks):
            tensor[:, :, first : first + len(sources)] = tensor.index_select(2, rows)

    def feature_rows(self, first: int, stop: int) -> NDArray[np.float32]:
        return self.features[first:stop]

    def put_features(self, first: int, rows: NDArray[np.float32]) -> None:
        self.features[first : first + len(rows)] = rows

    # Inference mode as in copy_rows.
    @torch.inference_mode()
    def wipe(self) -> None:
        """Set keys and values to zero: the former user may have left NaN there."""
        for tensor in chain.from_iterable(self._stacks):
            tensor.zero_()

    # A buffer made during a pass consists of inference tensors, which cannot be written outside inference mode.
    @torch.inference_mode()
    def copy_rows(self, first: int, source: KVRows, source_first: int, count: int) -> None:
        """Copy rows from another buffer, or from this one where they do not overlap."""
        here, stop = slice(first, first + count), source_first + count
        for (keys, values), (from_keys, from_values) in zip(self._stacks, source.rows(source_first, stop), strict=True):
            keys[:, :, here], values[:, :, here] = from_keys, from_values
        self.features[here] = source.feature_rows(source_first, stop)


class BufferPool:
    """Buffers in a few sizes, so that one session's fits the next. Not thread-safe."""

    def __init__(self, shape: KVShape, budget: MemoryBudget) -> None:
        self.shape = shape
        self.budget = budget
        self.spare_bytes = 0  # of unused buffers; they count in the budget like all others
        self._spare: dict[tuple[int, int], list[KVBuffer]] = defaultdict(list)

    def bytes_of(self, num_rows: int, width: int) -> int:
        """Return the bytes that so many rows need at least."""
        return num_rows * self.shape.row_bytes(width)

    def empty(self, width: int) -> KVBuffer:
        """Return a buffer without rows."""
        return KVBuffer(BufferSlab(self.shape, 1, 0, width), 0)

    def missing(self, buffer: KVRows, num_rows: int) -> int:
        """Return how many rows to take so that grown() has room for `num_rows`; 0 where there is room."""
        return num_rows if num_rows > buffer.capacity else 0

    def wanted_bytes(self, buffer: KVRows, num_taken: int) -> int:
        """Return the bytes of what `buffer` becomes with so many rows taken."""
        return self.bytes_of(rounded_capacity(num_taken), buffer.width)

    def grown(self, buffer: KVRows, taken: KVRows, used: int) -> KVRows:
        """Return a larger buffer with the first `used` rows of `buffer`, which is given back."""
        assert isinstance(taken, KVBuffer)
        # Copy before giving back: the next session may take the old buffer at once and wipe it.
        taken.copy_rows(0, buffer, 0, used)
        self.give(buffer)
        return taken

    def without(self, buffer: KVRows, count: int) -> KVRows:
        """Return a buffer without the first `count` rows of `buffer`, which is given back or changed."""
        assert isinstance(buffer, KVBuffer)
        rest = buffer.capacity - count
        try:
            smaller = self.take(max(rest, 1), buffer.width)
        except OutOfKVMemory:
            # Blocks of `count` rows never overlap their destination, which copy_rows does not allow.
            for first in range(0, rest, count):
                buffer.copy_rows(first, buffer, first + count, min(count, rest - first))
            return buffer
        smaller.copy_rows(0, buffer, count, rest)
        self.give(buffer)
        return smaller

    def take(self, num_rows: int, width: int) -> KVBuffer:
        """Return a buffer for at least `num_rows`. Raises OutOfKVMemory."""
        rounded = rounded_capacity(num_rows)
        if spare := self._spare.get((rounded, width)):
            buffer = spare.pop()
            self.spare_bytes -= buffer.num_bytes
            buffer.slab.num_spare -= 1
            if buffer.slab.num_lanes > 1 and not buffer.is_fresh:
                buffer.wipe()
            buffer.is_fresh = False
            return buffer
        lane_bytes = self.bytes_of(rounded, width)
        lanes = min(_SLAB_LANES, max(min(_SLAB_BYTES, self.budget.free_bytes // _SLAB_SHARE) // lane_bytes, 1))
        try:
            first, *others = self._allocate(lanes, rounded, width)
        except OutOfKVMemory:
            return self.take_exactly(num_rows, width)
        for buffer in reversed(others):  # the next one taken lies beside the first
            self.give(buffer)
        first.is_fresh = False
        return first

    def take_exactly(self, num_rows: int, width: int) -> KVBuffer:
        """Return a buffer for exactly `num_rows`. Raises OutOfKVMemory."""
        return self._allocate(1, num_rows, width)[0]

    def give(self, buffer: KVRows) -> None:
        """Take a buffer back; one of an odd size is freed, since no other session could use it."""
        assert isinstance(buffer, KVBuffer)
        if buffer.capacity and buffer.capacity == rounded_capacity(buffer.capacity):
            self._spare[buffer.capacity, buffer.width].append(buffer)
            self.spare_bytes += buffer.num_bytes
            buffer.slab.num_spare += 1
        else:
            self.free(buffer)

    def free(self, buffer: KVRows) -> None:
        """Take a buffer back, and keep it ready for nobody."""
        self.budget.give(buffer.num_bytes)

    def has_room(self, num_rows: int, width: int) -> bool:
        """Return whether take() would need nothing that is kept ready for others."""
        rounded = rounded_capacity(num_rows)
        return bool(self._spare.get((rounded, width))) or self.bytes_of(rounded, width) <= self.budget.free_bytes

    def fits_beside(
        self,
        staying: Collection[KVRows],
        leaving: Collection[KVRows],
        prefix_bytes: int,
        num_rows: int,
        width: int,
    ) -> bool:
        """Return whether take() succeeds once all is free but `staying`, and `prefix_bytes` of prefixes."""
        slabs = {buffer.slab for buffer in staying if isinstance(buffer, KVBuffer)}
        pinned = sum(slab.num_bytes for slab in slabs) + prefix_bytes
        # A slab goes only as a whole; a lane beside one that stays serves for rows of its own size.
        key = (rounded_capacity(num_rows), width)
        lanes = [*self._spare.get(key, ()), *(buffer for buffer in leaving if isinstance(buffer, KVBuffer))]
        return pinned + self.bytes_of(num_rows, width) <= self.budget.limit_bytes or any(
            buffer.slab in slabs and (buffer.capacity, buffer.width) == key for buffer in lanes
        )

    def trim(self) -> None:
        """Free the slabs of which no buffer is in use."""
        for key, buffers in list(self._spare.items()):
            kept = [buffer for buffer in buffers if buffer.slab.num_spare < buffer.slab.num_lanes]
            freed = sum(buffer.num_bytes for buffer in buffers) - sum(buffer.num_bytes for buffer in kept)
            self._spare[key] = kept
            self.spare_bytes -= freed
            self.budget.give(freed)

    def _allocate(self, lanes: int, capacity: int, width: int) -> list[KVBuffer]:
        num_bytes = self.bytes_of(lanes * capacity, width)
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
        return [KVBuffer(slab, lane) for lane in range(lanes)]


def _num_bytes(stacks: Iterable[tuple[Tensor, Tensor]]) -> int:
    return sum(keys.nbytes + values.nbytes for keys, values in stacks)


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
