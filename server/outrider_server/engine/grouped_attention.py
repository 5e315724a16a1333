"""Attention over several short segments at once, behind the same prefix or none.

    session a   K/V . . . .      one product [members, kv_heads, rows, keys] for all of them, padded to the most rows
    session b   K/V . .          and the most keys; what is padded is masked, or thrown away. Where the members are no
    session c   K/V . . .        neighbors in one slab their keys are copied, which costs a tenth of the product.
                                 Keys of a prefix are multiplied once, with the queries of all.

Python and a call into torch cost more than the arithmetic of such a segment; the loop over segments is the plain path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from outrider_server.engine.batch_segment import AttentionCall, BatchSegment
from outrider_server.kv.buffers import BufferSlab, KVBuffer
from outrider_server.kv.prefix import Prefix

Placed: TypeAlias = tuple[int, BatchSegment]  # and where its rows begin in the flat batch
FEW_ROWS = (8, 16, 32, 64)  # segments are padded to the most rows of their kind
_FEW_KEYS = 128  # cost less than a separate product


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How much may attend together.

    `scores` of one head and `keys` in copies, both with padding: memory that no budget counts. A member's keys are
    padded to at most `padding` times as many, plus a few.
    """

    scores: int
    keys: int
    padding: float


HOST_LIMITS = GroupLimits(scores=2**20, keys=2**16, padding=1.5)
# There a group more costs more than its arithmetic. 32 sessions with 8k of context and trees of 16 are one: a GB for an
# 8B model's keys and values of a layer.
DEVICE_LIMITS = GroupLimits(scores=6 * 2**20, keys=2**18 + 2**13, padding=4.0)


class _Lanes:
    """The members whose buffers lie in one slab: places first .. stop-1 of the group."""

    def __init__(self, slab: BufferSlab, first: int, members: Sequence[Placed], device: torch.device) -> None:
        segments = [segment for _, segment in members]
        lanes = [_buffer(segment).lane for segment in segments]
        self._slab = slab
        stop = lanes[0] + len(lanes)
        self._neighbors = slice(lanes[0], stop) if lanes == list(range(lanes[0], stop)) else None
        self.places = slice(first, first + len(segments))
        self.num_keys = max(_own_keys(segment) for segment in segments)
        rows, targets = [], []
        for begin, segment in members:
            count = np.arange(segment.num_rows)
            rows.append(begin + count)
            targets.append(_buffer(segment).lane * slab.capacity + segment.slot.length - segment.slot.start + count)
        tables = [np.array(lanes), np.concatenate(rows), np.concatenate(targets)]
        self._lanes, self._rows, self._targets = (torch.from_numpy(table).to(device) for table in tables)

    def written(self, layer: int, which: int, new: Tensor) -> Tensor:
        """Write new rows [kv_heads, N, dim] of keys (0) or values (1) into the slab.

        Return the members' [places, keys, kv_heads, dim].
        """
        stored = self._slab.layer(layer)[which]
        if self._slab.shape.keeps(layer):
            stored.flatten(0, 1).index_copy_(0, self._targets, new.index_select(1, self._rows).transpose(0, 1))
        begun = stored[:, : self.num_keys]
        return begun.index_select(0, self._lanes) if self._neighbors is None else begun[self._neighbors]


class AttentionGroup:
    """Segments that attend together, for one pass."""

    def __init__(self, members: Sequence[Placed]) -> None:
        slabs: dict[BufferSlab, list[Placed]] = defaultdict(list)
        for member in members:
            slabs[_buffer(member[1]).slab].append(member)
        ordered: list[Placed] = []
        self._parts: list[_Lanes] = []
        self._slot = members[0][1].slot
        device = self._slot.shape.device
        for slab, ours in slabs.items():
            ours.sort(key=lambda placed: _buffer(placed[1]).lane)
            self._parts.append(_Lanes(slab, len(ordered), ours, device))
            ordered.extend(ours)
        self._members = [segment for _, segment in ordered]
        self._num_rows = max(segment.num_rows for segment in self._members)
        self._num_keys = max(part.num_keys for part in self._parts)
        self._masks: dict[tuple[int | None, int], Tensor] = {}
        # Padding points at row 0 of the batch; what comes out of it is never read back.
        padded = np.zeros((len(ordered), self._num_rows), dtype=np.int64)
        rows, back = [], []
        for place, (first, segment) in enumerate(ordered):
            count = np.arange(segment.num_rows)
            padded[place, : segment.num_rows] = first + count
            rows.append(first + count)
            back.append(place * self._num_rows + count)
        tables = [padded.ravel(), np.concatenate(rows), np.concatenate(back)]
        self._padded, self._rows, self._back = (torch.from_numpy(table).to(device) for table in tables)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, out: Tensor) -> None:
        """Attend for all members, from and into the whole batch.

        query [heads, N, dim], key and value [kv_heads, N, dim], out [N, heads, value_dim].
        """
        keys, values = (
            self._merged([part.written(layer, which, new) for part in self._parts])
            for which, new in enumerate((key, value))
        )
        (heads, kv_heads), count = (query.shape[0], key.shape[0]), len(self._members)
        group = heads // kv_heads
        rows = query.index_select(1, self._padded).view(kv_heads, group, count, self._num_rows, -1)
        rows = rows.permute(2, 0, 1, 3, 4).reshape(count, kv_heads, group * self._num_rows, -1)
        mask = self._mask(call.window, group)
        if call.fits_fused_kernel and self._slot.prefix is None:
            answer = scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=call.scaling)
        else:
            answer = attend_by_hand(rows, keys, values, mask, self._num_rows, self._slot.shared(layer), call)
        answer = answer.view(count, kv_heads, group, self._num_rows, -1).permute(0, 3, 1, 2, 4)
        answer = answer.reshape(count * self._num_rows, heads, -1)
        out.index_copy_(0, self._rows, answer.index_select(0, self._back))

    def _merged(self, parts: Sequence[Tensor]) -> Tensor:
        """Join [places, keys, kv_heads, dim] of every slab to [members, kv_heads, keys, dim], padded with zeros."""
        if len(parts) == 1:
            return parts[0].transpose(1, 2)
        # Zeros, not empty: masked keys still enter the product, and NaN times a weight of 0 is NaN.
        padded_all = parts[0].new_zeros(len(self._members), self._num_keys, *parts[0].shape[2:])
        for part, own in zip(self._parts, parts, strict=True):
            padded_all[part.places, : part.num_keys] = own
        return padded_all.transpose(1, 2)

    def _mask(self, window: int | None, group: int) -> Tensor:
        """Return the additive mask [members, 1, group * rows, start + keys]; padded rows see all and are dropped."""
        if window is not None and all(segment.narrowed(window) is None for segment in self._members):
            window = None
        if (window, group) not in self._masks:
            start = self._slot.start
            bias = np.zeros((len(self._members), self._num_rows, start + self._num_keys), dtype=np.float32)
            for place, segment in enumerate(self._members):
                committed, count = segment.slot.length, segment.num_rows
                # Only the first `count` rows are masked: a padded row that saw nothing would be softmax over -inf,
                # which is NaN.
                bias[place, :count, committed + count :] = -np.inf
                bias[place, :count, committed : committed + count][~segment.visible()] = -np.inf
                if window is not None:
                    rows = np.array(segment.positions)
                    columns = np.concatenate([np.arange(committed), rows])
                    bias[place, :count, : committed + count][rows[:, None] - columns[None, :] >= window] = -np.inf
            shape = self._slot.shape
            mask = torch.from_numpy(bias).to(device=shape.device, dtype=shape.dtype)
            self._masks[window, group] = mask.repeat(1, group, 1)[:, None]
        return self._masks[window, group]


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
    everything = torch.cat([*(each.transpose(0, 1) for each in scores), own], dim=-1) * call.scaling
    if call.softcap is not None:
        everything = torch.tanh(everything / call.softcap) * call.softcap
    if mask is not None:
        everything = everything + mask
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


def group_segments(placed: Sequence[Placed], limits: GroupLimits) -> tuple[list[AttentionGroup], list[Placed]]:
    """Split the segments into groups that attend together and single ones."""
    kinds: dict[tuple[Prefix | None, int], list[Placed]] = defaultdict(list)
    single: list[Placed] = []
    for first, segment in placed:
        size = next((most for most in FEW_ROWS if segment.num_rows <= most), 0)
        if size and _buffer(segment).slab.num_lanes > 1:
            kinds[segment.slot.prefix, size].append((first, segment))
        else:
            single.append((first, segment))
    found: list[AttentionGroup] = []
    for kind in kinds.values():
        for members in similar(kind, _own_keys, limits, limits.scores):
            if len(members) > 1:
                found.append(AttentionGroup(members))
            else:
                single.extend(members)
    return found, single


def similar(
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
