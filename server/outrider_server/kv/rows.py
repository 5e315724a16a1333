"""The interface of what K/V rows lie in: contiguous buffers (buffers.py) or pages of an arena (pages.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class KVRows(Protocol):
    """Room for rows of K/V, and as many rows of features on the CPU; rows count from its own beginning."""

    capacity: int  # in rows
    width: int  # values of a feature row

    @property
    def num_bytes(self) -> int: ...

    def layer_rows(self, layer: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return K and V of the first `stop` rows of a layer: [kv_heads, stop, dim] each."""
        ...

    def rows(self, first: int, stop: int) -> list[tuple[Tensor, Tensor]]:
        """Return K and V rows first .. stop-1 of each stack of layers: [layers, kv_heads, stop - first, dim] each."""
        ...

    @property
    def strides(self) -> tuple[int, int]:
        """Values from row to row, and from head to head, of its first stack of layers."""
        ...

    def runs(self, first: int, stop: int) -> list[tuple[int, int, int, int]]:
        """Return where rows first .. stop-1 of its first stack lie, in pieces.

        Addresses of keys and of values in the first layer, bytes from layer to layer, and rows of each.
        """
        ...

    def write(self, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Store `keys`, `values` [kv_heads, n, dim] as rows first, first + 1, ... of a layer."""
        ...

    def move(self, sources: Sequence[int], first: int) -> None:
        """Copy those rows of all layers to first, first + 1, ...; both may overlap."""
        ...

    def feature_rows(self, first: int, stop: int) -> NDArray[np.float32]:
        """Return feature rows first .. stop-1, maybe without copying them."""
        ...

    def put_features(self, first: int, rows: NDArray[np.float32]) -> None: ...
