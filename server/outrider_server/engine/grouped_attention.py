"""Attention of several sessions' short segments at once: one product a layer, padded to the most rows and keys.

    session a   K/V . . . .      the new rows go where the K/V lies by one index; then queries [members, kv_heads, rows]
    session b   K/V . .          meet [members, kv_heads, keys]; what is padded is masked, or thrown away
    session c   K/V . . .

    lanes       where the members are no neighbors in one slab their keys are copied, which costs a tenth of the
                product. Members begin with the same prefix or none, whose keys meet the queries of all at once
    pages       the pages of each, in one copy; a shared prefix is pages like all others

Python and a call into torch cost more than the arithmetic of such a segment. Tables and masks are made once a pass, on
the device, from two uploads. The loop over segments is the plain path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from outrider_server.engine.batch_segment import AttentionCall, BatchSegment, unpacked
from outrider_server.kv.buffers import BufferSlab, KVBuffer
from outrider_server.kv.pages import PAGE, PagedBuffer, PagePool
from outrider_server.kv.prefix import Prefix

Indices: TypeAlias = NDArray[np.int64]
Part: TypeAlias = tuple[Tensor, Tensor]  # keys and values of one layer, [kv_heads, n, dim] each
Placed: TypeAlias = tuple[int, BatchSegment]  # and where its rows begin in the flat batch
_FEW_ROWS = (8, 16, 32, 64)  # segments are padded to the most rows of their kind
_FEW_KEYS = 128  # cost less than a separate product
_WIDE_VALUES = 2**17  # of keys in float64 at a time (measured on CPU: three times as fast as all of 16,000 tokens)


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How much may attend together.

    `scores` of one head and `keys` in copies, both with padding: memory that no budget counts. A member's keys are
    padded to at most `padding` times as many, plus a few. Members from several slabs have at most `joined` keys.
    """

    scores: int
    keys: int
    padding: float
    joined: int


HOST_LIMITS = GroupLimits(scores=2**20, keys=2**16, padding=1.5, joined=2**11)
# There a group more costs more than its arithmetic. 32 sessions with 8k of context and trees of 16 are one: a GB for an
# 8B model's keys and values of a layer.
DEVICE_LIMITS = GroupLimits(scores=6 * 2**20, keys=2**18 + 2**13, padding=4.0, joined=2**18 + 2**13)


class AttentionGroup(ABC):
    """Segments that attend together, for one pass, wherever their K/V lies.

    `rows`: theirs in the batch, in the order of the members. `invariant`: in float64.
    """

    def __init__(self, members: Sequence[Placed], num_keys: int, *, invariant: bool) -> None:
        self._invariant = invariant
        self._segments = segments = [segment for _, segment in members]
        self._num_keys = num_keys  # of each member, prefix and padding included
        self._shape = segments[0].slot.shape
        sizes = np.array([segment.num_rows for segment in segments])
        self._num_rows = num_rows = int(sizes.max())
        place, begun = np.repeat(np.arange(len(segments)), sizes), np.repeat(np.cumsum(sizes) - sizes, sizes)
        own = np.arange(len(place)) - begun  # number of every row within its segment
        rows = np.repeat([first for first, _ in members], sizes) + own
        self._is_sorted = bool((np.diff(rows) > 0).all())
        committed = np.array([segment.slot.length for segment in segments])
        # Padding points at row 0 of the batch; what comes out of it is never read back.
        positions, padded = np.zeros((2, len(segments), num_rows), dtype=np.int64)
        positions[place, own] = [position for segment in segments for position in segment.positions]
        padded[place, own] = rows
        visible: list[int] = []
        for segment in segments:
            # A padded row sees the first one, for a softmax over nothing is NaN.
            visible += [*segment.row_bits(), *[1] * (num_rows - segment.num_rows)]
        seen = unpacked(visible, num_rows).reshape(-1, num_rows, num_rows)
        self._visible = torch.as_tensor(seen, device=self._shape.device)
        tables = [committed, positions, padded, rows, place * num_rows + own]
        uploaded = _uploaded([*tables, *self._tables(place, committed[place] + own)], self._shape.device)
        self._committed, self._positions, self._padded, self.rows, self._back, *self._own = uploaded
        self._masks: dict[tuple[int | None, int], Tensor] = {}
        self._of_heads: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def _tables(self, place: Indices, at: Indices) -> Sequence[Indices]:
        """Return tables to upload as `_own`; row i is number at[i] of the text of member place[i]."""

    @abstractmethod
    def _stored(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Sequence[Part]]:
        """Store the new rows [kv_heads, n, dim].

        Return all keys and values of the members, [members, kv_heads, keys, dim], but for the parts that all share.
        """

    def covers(self, num_rows: int) -> bool:
        """Return whether its rows are all of a batch of so many, in order."""
        return self._is_sorted and len(self.rows) == num_rows

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Map the batch's query [heads, N, dim], key and value [kv_heads, N, dim] to `rows`' [n, heads, value_dim]."""
        if not self.covers(key.shape[1]):
            key, value = key.index_select(1, self.rows), value.index_select(1, self.rows)
        keys, values, shared = self._stored(layer, key, value)
        heads, _, dim = query.shape
        padded, back = self._indices(heads)
        # [members, kv_heads, group * rows, dim] at once: in two steps it would be two copies.
        rows = query.transpose(0, 1).reshape(-1, dim).index_select(0, padded)
        rows = rows.view(len(self._segments), key.shape[0], -1, dim)
        mask = self._mask(call.window, heads // key.shape[0])
        if self._invariant:
            answer = self._attend_wide(rows, keys, values, mask, shared, call)
        elif call.fits_fused_kernel and not shared:
            answer = scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=call.scaling)
        else:
            answer = attend_by_hand(rows, keys, values, mask, self._num_rows, shared, call)
        return answer.reshape(-1, answer.shape[3]).index_select(0, back).view(-1, heads, answer.shape[3])

    def _attend_wide(
        self, rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, shared: Sequence[Part], call: AttentionCall
    ) -> Tensor:
        """Attend in float64, some members at a time, whose keys stay in the processor's cache; round once."""
        wide = [(part_keys.double(), part_values.double()) for part_keys, part_values in shared]
        count = max(1, _WIDE_VALUES // keys[0].numel())
        answers: list[Tensor] = []
        for first in range(0, len(rows), count):
            part = slice(first, first + count)
            query, own_keys, own_values = rows[part].double(), keys[part].double(), values[part].double()
            if call.fits_fused_kernel and not wide:
                answer = scaled_dot_product_attention(
                    query, own_keys, own_values, attn_mask=mask[part], scale=call.scaling
                )
            else:
                answer = attend_by_hand(query, own_keys, own_values, mask[part], self._num_rows, wide, call)
            answers.append(answer.to(rows.dtype))
        return torch.cat(answers)

    def _indices(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return where [members, heads, rows] lie among [N, heads], and where [n, heads] lie among those."""
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
            columns = torch.arange(self._num_keys, device=self._shape.device)
            own = columns - self._committed[:, None]  # [members, keys]: rows of this pass count from 0
            clamped = own.clamp(0, self._num_rows - 1)
            among = self._visible.gather(2, clamped[:, None].expand(-1, self._num_rows, -1))
            seen = (own < 0)[:, None] | (among & (own < self._num_rows)[:, None])
            if window is not None:
                position = torch.where(own < 0, columns, self._positions.gather(1, clamped))
                seen &= self._positions[:, :, None] - position[:, None] < window
            dtype = torch.float64 if self._invariant else self._shape.dtype
            bias = torch.zeros(seen.shape, dtype=dtype, device=self._shape.device)
            self._masks[window, group] = bias.masked_fill_(~seen, float("-inf")).repeat(1, group, 1)[:, None]
        return self._masks[window, group]


@dataclass(frozen=True, slots=True)
class _SlabPart:
    """The members whose buffers lie in one slab: their places in the group, and their rows among the group's."""

    slab: BufferSlab
    places: slice
    rows: slice
    num_keys: int
    neighbors: slice | None  # their lanes, where these are in one piece


class LaneGroup(AttentionGroup):
    """Members in lanes of slabs, which begin with the same prefix or none."""

    def __init__(self, members: Sequence[Placed], *, invariant: bool) -> None:
        ordered = sorted(members, key=lambda placed: (id(_buffer(placed[1]).slab), _buffer(placed[1]).lane))
        self._slot = members[0][1].slot
        self._parts: list[_SlabPart] = []
        place = row = 0
        for slab, part in groupby((segment for _, segment in ordered), lambda segment: _buffer(segment).slab):
            segments = list(part)
            lanes = [_buffer(segment).lane for segment in segments]
            stop, stop_row = place + len(segments), row + sum(segment.num_rows for segment in segments)
            is_one_piece = lanes[-1] - lanes[0] == len(lanes) - 1
            neighbors = slice(lanes[0], lanes[-1] + 1) if is_one_piece else None
            num_keys = max(map(_own_keys, segments))
            self._parts.append(_SlabPart(slab, slice(place, stop), slice(row, stop_row), num_keys, neighbors))
            place, row = stop, stop_row
        super().__init__(ordered, self._slot.start + max(part.num_keys for part in self._parts), invariant=invariant)

    def _tables(self, place: Indices, at: Indices) -> Sequence[Indices]:
        buffers = [_buffer(segment) for segment in self._segments]
        first = np.array([buffer.lane * buffer.capacity - self._slot.start for buffer in buffers])
        return np.array([buffer.lane for buffer in buffers]), first[place] + at

    def _stored(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Sequence[Part]]:
        keys, values = (
            self._joined([self._written(part, layer, which, new) for part in self._parts])
            for which, new in enumerate((key, value))
        )
        return keys, values, self._slot.shared(layer)

    def _written(self, part: _SlabPart, layer: int, which: int, new: Tensor) -> Tensor:
        """Write new rows of keys (0) or values (1) into a slab; return its members' [places, keys, kv_heads, dim]."""
        stored, (lanes, targets) = part.slab.layer(layer)[which], self._own
        if self._shape.keeps(layer):
            stored.flatten(0, 1).index_copy_(0, targets[part.rows], new[:, part.rows].transpose(0, 1))
        begun = stored[:, : part.num_keys]
        return begun.index_select(0, lanes[part.places]) if part.neighbors is None else begun[part.neighbors]

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Join [places, keys, kv_heads, dim] of every slab to [members, kv_heads, keys, dim], padded with zeros."""
        if len(parts) == 1:
            return parts[0].transpose(1, 2)
        # Zeros, not empty: masked keys still enter the product, and NaN times a weight of 0 is NaN.
        num_keys = self._num_keys - self._slot.start
        joined = parts[0].new_zeros(len(self._segments), num_keys, *parts[0].shape[2:])
        for part, own in zip(self._parts, parts, strict=True):
            joined[part.places, : part.num_keys] = own
        return joined.transpose(1, 2)


class PageGroup(AttentionGroup):
    """Members in pages of one arena."""

    def __init__(self, pool: PagePool, members: Sequence[Placed], *, invariant: bool) -> None:
        self._pool = pool
        num_pages = -(-max(_num_keys(segment) for _, segment in members) // PAGE)
        super().__init__(members, num_pages * PAGE, invariant=invariant)

    def _tables(self, place: Indices, at: Indices) -> Sequence[Indices]:
        num_pages = self._num_keys // PAGE
        # Padded with pages of its own: NaN that another session has left in a page must not get here.
        tables = [segment.slot.page_table() for segment in self._segments]
        pages = np.stack([t[:num_pages] if len(t) >= num_pages else np.resize(t, num_pages) for t in tables])
        return pages, pages[place, at // PAGE] * PAGE + at % PAGE

    def _stored(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Sequence[Part]]:
        pages, targets = self._own
        self._pool.write(layer, targets, key, value)
        # All pages of all members: [members, kv_heads, keys, dim] in one copy.
        rows = self._pool.pages(layer).index_select(0, pages.flatten())
        rows = rows.view(len(self._segments), -1, *rows.shape[2:]).transpose(1, 2)
        return *self._pool.keys_and_values(layer, rows), ()


def attend_by_hand(
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    num_rows: int,
    shared: Sequence[tuple[Tensor, Tensor]],
    call: AttentionCall,
) -> Tensor:
    """Attend without the fused kernel, to keys of their own and to those that all share.

    Map rows [members, kv_heads, group * num_rows, dim], keys and values [members, kv_heads, keys, dim] and `shared`
    [kv_heads, n, dim] to [members, kv_heads, group * num_rows, value_dim].
    """
    members, kv_heads, count, _ = rows.shape
    merged = rows.transpose(0, 1).reshape(kv_heads, members * count, -1) if shared else rows
    scores = [_wide_scores(merged, part).view(kv_heads, members, count, -1) for part, _ in shared]
    own = _wide_scores(rows, keys)
    everything = torch.cat([*(each.transpose(0, 1) for each in scores), own], dim=-1) if scores else own
    everything.mul_(call.scaling)
    if call.softcap is not None:
        everything = torch.tanh(everything / call.softcap) * call.softcap
    if mask is not None:
        everything.add_(mask)
    of_heads = everything.view(members, -1, num_rows, everything.shape[-1])
    weights = call.weights(of_heads).to(rows.dtype).reshape(everything.shape)
    shares = torch.split(weights, [*(part.shape[1] for part, _ in shared), keys.shape[2]], dim=-1)
    answer = torch.matmul(shares[-1], values)
    for share, (_, part) in zip(shares, shared, strict=False):
        of_shared = torch.bmm(share.transpose(0, 1).reshape(kv_heads, members * count, -1), part)
        answer = answer + of_shared.view(kv_heads, members, count, -1).transpose(0, 1)
    return answer


def _wide_scores(rows: Tensor, keys: Tensor) -> Tensor:
    """Multiply rows [..., n, dim] with keys [..., k, dim] to scores [..., n, k] in float32, or in their wider type.

    As a fused kernel holds them: a score of 20 rounded to bfloat16 is off by up to 0.06, and its weight by 6 %.
    """
    dtype = torch.promote_types(rows.dtype, torch.float32)
    return torch.matmul(rows.to(dtype), keys.to(dtype).transpose(-1, -2))


def group_segments(
    placed: Sequence[Placed], limits: GroupLimits, *, invariant: bool = False
) -> tuple[list[AttentionGroup], list[Placed]]:
    """Split the segments into groups that attend together and single ones."""
    kinds: dict[tuple[PagePool | Prefix | None, int], list[Placed]] = defaultdict(list)
    single: list[Placed] = []
    for first, segment in placed:
        buffer = segment.slot.buffer
        size = next((most for most in _FEW_ROWS if segment.num_rows <= most), 0)
        if size and isinstance(buffer, PagedBuffer):
            kinds[buffer.pool, size].append((first, segment))
        elif size and _buffer(segment).slab.num_lanes > 1:
            kinds[segment.slot.prefix, size].append((first, segment))
        else:
            single.append((first, segment))
    groups: list[AttentionGroup] = []
    for (where, _), kind in kinds.items():
        if isinstance(where, PagePool):
            similar = _similar(kind, _num_keys, limits, limits.keys)
            in_order = (sorted(members, key=lambda member: member[0]) for members in similar)
            groups += [PageGroup(where, members, invariant=invariant) for members in in_order]
            continue
        for members in _in_place(kind, limits):
            if len(members) > 1:
                groups.append(LaneGroup(members, invariant=invariant))
            else:
                single.extend(members)
    return groups, single


def _in_place(kind: Sequence[Placed], limits: GroupLimits) -> list[list[Placed]]:
    """Split segments in lanes into groups, those of many keys slab by slab: to copy them costs more than a product."""
    groups: list[list[Placed]] = []
    for members in _similar(kind, _own_keys, limits, limits.scores):
        if len(members) * _own_keys(members[0][1]) <= limits.joined:
            groups.append(members)
            continue
        slabs: dict[BufferSlab, list[Placed]] = defaultdict(list)
        for member in members:
            slabs[_buffer(member[1]).slab].append(member)
        groups += slabs.values()
    return groups


def _similar(
    kind: Sequence[Placed], num_keys: Callable[[BatchSegment], int], limits: GroupLimits, most_keys: int
) -> list[list[Placed]]:
    """Split segments into groups of similar length, small enough for their scores, and of at most `most_keys` keys."""
    groups: list[list[Placed]] = []
    num_rows = max(segment.num_rows for _, segment in kind)
    longest = most = 0
    for member in sorted(kind, key=lambda placed: -num_keys(placed[1])):
        slot, own = member[1].slot, num_keys(member[1])
        if not groups or len(groups[-1]) == most or longest > limits.padding * own + _FEW_KEYS:
            groups.append([])
            longest, keys = own, slot.length + member[1].num_rows
            most = max(1, min(limits.scores // (num_rows * keys), most_keys // keys))
        groups[-1].append(member)
    return groups


def _own_keys(segment: BatchSegment) -> int:
    return segment.slot.length - segment.slot.start + segment.num_rows


def _buffer(segment: BatchSegment) -> KVBuffer:
    assert isinstance(segment.slot.buffer, KVBuffer)
    return segment.slot.buffer


def _num_keys(segment: BatchSegment) -> int:
    return segment.slot.length + segment.num_rows


def _uploaded(tables: Sequence[Indices], device: torch.device) -> list[Tensor]:
    """Send tables to the device in one piece."""
    flat = torch.as_tensor(np.concatenate([table.ravel() for table in tables]), device=device)
    parts = torch.split(flat, [table.size for table in tables])
    return [part.view(table.shape) for part, table in zip(parts, tables, strict=True)]
