"""Growable buffers of rows that are appended to and cut at the end: the storage of every draft state."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

INITIAL_ROWS = 128


class RowBuffer:
    """A tensor [..., length, width] with room to grow. Dropped rows are overwritten later, never moved."""

    def __init__(self, *leading: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.empty(*leading, INITIAL_ROWS, width, dtype=dtype, device=device)
        self.length = 0

    @property
    def all(self) -> Tensor:
        """Return a view of the rows, [..., length, width], which later appends may overwrite after a truncate."""
        return self._buffer[..., : self.length, :]

    def append(self, rows: Tensor) -> None:
        """Append rows [..., n, width]."""
        end = self.length + rows.shape[-2]
        while end > self._buffer.shape[-2]:
            # Growing moves the rows: views taken before keep the old storage and no longer follow.
            self._buffer = torch.cat((self._buffer, torch.empty_like(self._buffer)), dim=-2)
        self._buffer[..., self.length : end, :] = rows
        self.length = end

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows, or all when there are fewer."""
        self.length = min(self.length, length)


class KVCache:
    """Keys and values of an attention layer, each [1, kv_heads, length, head_dim]."""

    def __init__(self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._keys, self._values = (RowBuffer(1, kv_heads, width=head_dim, dtype=dtype, device=device) for _ in "kv")

    @property
    def keys(self) -> Tensor:
        return self._keys.all

    @property
    def values(self) -> Tensor:
        return self._values.all

    @property
    def length(self) -> int:
        return self._keys.length

    def first(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the first `length` rows."""
        return self.keys[:, :, :length], self.values[:, :, :length]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Append keys and values [kv_heads, n, head_dim] and let the queries [heads, n, head_dim] attend to all rows.

        mask [n, length] bool, None: they see all. Returns [1, heads, n, head_dim].
        """
        self.append(keys, values)
        return F.scaled_dot_product_attention(
            queries.unsqueeze(0), self.keys, self.values, attn_mask=mask, enable_gqa=True
        )

    def append(self, keys: Tensor, values: Tensor) -> None:
        self._keys.append(keys)
        self._values.append(values)

    def truncate(self, length: int) -> None:
        self._keys.truncate(length)
        self._values.truncate(length)


class JointCache:
    """The caches of several texts whose rows run side by side; each row sees rows of its own text alone.

    sizes[i]: rows of text i in this pass; masks[i] [sizes[i], length of its cache] bool, None: they see all.
    """

    def __init__(self, caches: Sequence[KVCache], masks: Sequence[Tensor | None], sizes: list[int]) -> None:
        self.caches = caches
        self.masks = masks
        self.sizes = sizes

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attend as KVCache does, the rows of text i being those behind text i - 1's."""
        assert mask is None
        parts = (torch.split(each, self.sizes, dim=1) for each in (queries, keys, values))
        return torch.cat(
            [cache.attend(q, k, v, own) for cache, own, q, k, v in zip(self.caches, self.masks, *parts, strict=True)],
            dim=2,
        )


AnyCache = KVCache | JointCache
