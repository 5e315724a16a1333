"""One session's rows in a flat batch: their positions and their mask. Knows no layers and no models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_proto.tree import DraftTree
from outrider_server.kv.slot import KVSlot


@dataclass(slots=True, eq=False)
class AttentionCall:
    """One layer's parameters."""

    scaling: float
    softcap: float | None
    window: int | None
    sinks: Tensor | None = None  # [heads]: a score that takes its part of the softmax and adds nothing (gpt-oss)

    @property
    def fits_fused_kernel(self) -> bool:
        return self.softcap is None and self.sinks is None

    def weights(self, scores: Tensor) -> Tensor:
        """Map masked scores [..., heads, rows, keys] to their softmax over the keys and the head's sink."""
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]


class BatchSegment:
    """One session's rows in a flat batch, for one pass."""

    def __init__(self, slot: KVSlot, num_chain: int, tree: DraftTree, max_position: int) -> None:
        self.slot = slot
        self.num_chain = num_chain
        self.num_rows = num_chain + len(tree)
        self._tree = tree
        slot.reserve(self.num_rows)
        first = slot.length
        root = first + num_chain - 1
        self.positions = [*range(first, root + 1), *(root + depth for depth in tree.depths())]
        self._furthest = max(self.positions)  # the deepest node need not be the last one
        if self._furthest > max_position:
            # Nodes beyond the context are never accepted, but their positions must exist in the model's tables.
            self.positions = [min(position, max_position) for position in self.positions]
            self._furthest = max_position
        self._masks: dict[tuple[int | None, int], Tensor | None] = {}

    def mask(self, window: int | None, repeats: int) -> Tensor | None:
        """Return the additive mask [1, 1, repeats * rows, length + rows]; None where everything is visible."""
        window = self.narrowed(window)
        key = (window, repeats)
        if key not in self._masks:
            self._masks[key] = self._build_mask(window, repeats)
        return self._masks[key]

    def narrowed(self, window: int | None) -> int | None:
        """Return the window, or None where all rows see to the beginning anyway."""
        return None if window is None or self._furthest < window else window

    def _build_mask(self, window: int | None, repeats: int) -> Tensor | None:
        if window is None and self.num_rows == 1:
            return None
        shape, committed = self.slot.shape, self.slot.length
        # Built on the device: for a chunk of a long context the mask is too large to send.
        bias = torch.zeros(self.num_rows, committed + self.num_rows, dtype=shape.dtype, device=shape.device)
        bias[:, committed:].masked_fill_(torch.from_numpy(~self.visible()).to(shape.device), float("-inf"))
        if window is not None:
            rows = torch.tensor(self.positions, device=shape.device)
            columns = torch.cat([torch.arange(committed, device=shape.device), rows])
            bias.masked_fill_(rows[:, None] - columns[None, :] >= window, float("-inf"))
        return bias.repeat(repeats, 1)[None, None]

    def visible(self) -> NDArray[np.bool_]:
        """Return [rows, rows] bool: entry (i, j) says that row i sees row j of this pass."""
        return unpacked(self.row_bits(), self.num_rows)

    def row_bits(self) -> list[int]:
        """Return which rows of this pass each row sees, as bits: the chain all before it, a node its ancestors too."""
        # As integers: the numpy calls of 32 trees took as long as all else that a pass prepares.
        bits = [(2 << row) - 1 for row in range(self.num_chain)]
        for node, parent in enumerate(self._tree.parents, self.num_chain):
            bits.append(bits[self.num_chain + parent] | 1 << node)  # ROOT, -1, is the last of the chain
        return bits


def unpacked(rows: Sequence[int], width: int) -> NDArray[np.bool_]:
    """Return the lowest `width` bits of each row: [rows, width] bool."""
    size = -(-width // 8)
    packed = np.frombuffer(b"".join([bits.to_bytes(size, "little") for bits in rows]), dtype=np.uint8)
    return np.unpackbits(packed.reshape(-1, size), axis=1, count=width, bitorder="little").view(np.bool_)
