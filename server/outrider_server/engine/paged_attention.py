"""Attention of all sessions whose K/V rows lie in pages: one call a layer, however many they are.

    session a  pages 0 2      the new rows go into the arena by one index; then queries, padded to the most rows, meet
    session b  pages 1        [members, kv_heads, keys]: the pages of each, padded to the most pages; what is padded is
    session c  pages 5 3 4    masked, or thrown away. A shared prefix is pages like all others.

Tables and masks are made once a pass, on the device, from two uploads. The loop over segments is the plain path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from outrider_server.engine.batch_segment import AttentionCall, BatchSegment, unpacked
from outrider_server.engine.grouped_attention import FEW_ROWS, GroupLimits, Placed, attend_by_hand, similar
from outrider_server.kv.pages import PAGE, PagedBuffer, PagePool


class PagedGroup:
    """Segments in pages of one arena that attend together, for one pass."""

    def __init__(self, pool: PagePool, members: Sequence[Placed]) -> None:
        segments = [segment for _, segment in members]
        self._pool = pool
        self._segments = segments
        self._num_rows = num_rows = max(segment.num_rows for segment in segments)
        count, num_keys = len(segments), max(_num_keys(segment) for segment in segments)
        committed = np.array([segment.slot.length for segment in segments])
        pages = np.empty((count, -(-num_keys // PAGE)), dtype=np.int64)
        positions = np.zeros((count, num_rows), dtype=np.int64)
        visible: list[int] = []
        for place, segment in enumerate(segments):
            # Padded with pages of its own: NaN that another session has left in a page must not get here.
            table = segment.slot.page_table()
            pages[place] = table[: pages.shape[1]] if len(table) >= pages.shape[1] else np.resize(table, pages.shape[1])
            positions[place, : segment.num_rows] = segment.positions
            visible += segment.row_bits()
            visible += [1] * (num_rows - segment.num_rows)  # of padded rows: a softmax over nothing is NaN
        self._visible = torch.as_tensor(
            unpacked(visible, num_rows).reshape(count, num_rows, num_rows), device=pool.shape.device
        )
        own, sizes = np.arange(num_rows), np.array([segment.num_rows for segment in segments])
        is_row = own < sizes[:, None]  # [members, rows], and not padding
        padded = np.where(is_row, (np.cumsum(sizes) - sizes)[:, None] + own, 0)
        rows = (np.array([first for first, _ in members])[:, None] + own)[is_row]
        places, at = np.nonzero(is_row)[0], (committed[:, None] + own)[is_row]
        targets = pages[places, at // PAGE] * PAGE + at % PAGE
        (self._committed, self._pages, self._positions, self._padded, self.rows, self._targets, self._back) = _uploaded(
            [committed, pages, positions, padded, rows, targets, np.flatnonzero(is_row)], pool.shape.device
        )
        self._masks: dict[tuple[int | None, int], Tensor] = {}
        self._of_heads: tuple[Tensor, Tensor] | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Attend for all members: `rows` of the batch, and no others.

        Map query [heads, n, dim], key and value [kv_heads, n, dim] to [n, heads, value_dim].
        """
        self._pool.write(layer, self._targets, key, value)
        (heads, kv_heads), count = (query.shape[0], key.shape[0]), len(self._segments)
        padded, back = self._tables(heads)
        # [members, kv_heads, group * rows, dim] at once: in two steps it would be two copies.
        rows = query.transpose(0, 1).reshape(-1, query.shape[2]).index_select(0, padded)
        rows = rows.view(count, kv_heads, -1, query.shape[2])
        answer = self._product(rows, layer, call)
        return answer.reshape(-1, answer.shape[3]).index_select(0, back).view(-1, heads, answer.shape[3])

    def _product(self, rows: Tensor, layer: int, call: AttentionCall) -> Tensor:
        """Map rows [members, kv_heads, group * rows, dim] to [members, kv_heads, group * rows, value_dim]."""
        mask = self._mask(call.window, rows.shape[2] // self._num_rows)
        # All pages of all members: [members, kv_heads, keys, dim] in one copy.
        found = self._pool.pages(layer).index_select(0, self._pages.flatten())
        found = found.view(len(self._segments), -1, *found.shape[2:]).transpose(1, 2)
        keys, values = self._pool.keys_and_values(layer, found)
        if call.fits_fused_kernel:
            return scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=call.scaling)
        return attend_by_hand(rows, keys, values, mask, self._num_rows, (), call)

    def _tables(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return where [members, heads, rows] lie among [n, heads], and the other way round."""
        if self._of_heads is None:
            each = torch.arange(heads, device=self._padded.device)
            padded = self._padded[:, None] * heads + each[:, None]
            place, row = self._back[:, None] // self._num_rows, self._back[:, None] % self._num_rows
            self._of_heads = padded.flatten(), ((place * heads + each) * self._num_rows + row).flatten()
        return self._of_heads

    def _mask(self, window: int | None, group: int) -> Tensor:
        """Return the additive mask [members, 1, group * rows, keys]."""
        if window is not None and all(segment.narrowed(window) is None for segment in self._segments):
            window = None
        if (window, group) not in self._masks:
            device, dtype = self._pages.device, self._pool.shape.dtype
            columns = torch.arange(self._pages.shape[1] * PAGE, device=device)
            own = columns - self._committed[:, None]  # [members, keys]: rows of this pass count from 0
            clamped = own.clamp(0, self._num_rows - 1)
            among = self._visible.gather(2, clamped[:, None].expand(-1, self._num_rows, -1))
            seen = (own < 0)[:, None] | (among & (own < self._num_rows)[:, None])
            if window is not None:
                position = torch.where(own < 0, columns, self._positions.gather(1, clamped))
                seen &= self._positions[:, :, None] - position[:, None] < window
            bias = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))
            self._masks[window, group] = bias.repeat(1, group, 1)[:, None]
        return self._masks[window, group]


def group_pages(placed: Sequence[Placed], limits: GroupLimits) -> tuple[list[PagedGroup], list[Placed]]:
    """Split the segments into groups that attend together, and others."""
    kinds: dict[tuple[PagePool, int], list[Placed]] = defaultdict(list)
    others: list[Placed] = []
    for first, segment in placed:
        size = next((most for most in FEW_ROWS if segment.num_rows <= most), 0)
        if size and isinstance(segment.slot.buffer, PagedBuffer):
            kinds[segment.slot.buffer.pool, size].append((first, segment))
        else:
            others.append((first, segment))
    groups = [
        PagedGroup(pool, sorted(members, key=lambda member: member[0]))
        for (pool, _), kind in kinds.items()
        for members in similar(kind, _num_keys, limits, limits.keys)
    ]
    return groups, others


def _num_keys(segment: BatchSegment) -> int:
    return segment.slot.length + segment.num_rows


def _uploaded(tables: Sequence[NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Send tables to the device in one piece."""
    flat = torch.as_tensor(np.concatenate([table.ravel() for table in tables]), device=device)
    parts = torch.split(flat, [table.size for table in tables])
    return [part.view(table.shape) for part, table in zip(parts, tables, strict=True)]
