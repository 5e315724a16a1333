"""Pieces of few rows that attend together, behind the same prefix or none.

    session a   K/V . . . .      one product [members, kv_heads, rows, keys] for all of them, padded to the most rows
    session b   K/V . .          and the most keys; what is padded is masked, or thrown away. Where the members are no
    session c   K/V . . .        neighbors in one slab their keys are copied, which costs a tenth of the product.
                                 Keys of a prefix are multiplied once, with the queries of all.

Python and a call into torch cost more than such a piece's arithmetic; a loop over pieces is the plain path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from outrider_server.engine.batch_segment import Call, Piece
from outrider_server.kv.prefix import Prefix
from outrider_server.kv.store import Slab

Placed: TypeAlias = tuple[int, Piece]  # and where its rows begin in the flat batch
_FEW_ROWS = (8, 16, 32, 64)  # pieces of one kind are padded to one another's rows
_MAX_PADDING = 1.5  # times the keys of the shortest, and
_FEW_KEYS = 128  # more, which cost less than a product apart
_MOST_SCORES = 2**20  # of one head: memory that no budget counts


class _Lanes:
    """Those members whose stores lie in one slab: places first .. stop-1 of the bunch."""

    def __init__(self, slab: Slab, first: int, members: Sequence[Placed], device: torch.device) -> None:
        pieces = [piece for _, piece in members]
        lanes = [piece.slot.store.lane for piece in pieces]
        self._slab = slab
        self._neighbors = slice(lanes[0], lanes[0] + len(lanes)) if _are_neighbors(lanes) else None
        self.places = slice(first, first + len(pieces))
        self.num_keys = max(_own_keys(piece) for piece in pieces)
        rows, targets = [], []
        for begin, piece in members:
            count = np.arange(piece.num_rows)
            rows.append(begin + count)
            targets.append(piece.slot.store.lane * slab.capacity + piece.slot.length - piece.slot.start + count)
        tables = [np.array(lanes), np.concatenate(rows), np.concatenate(targets)]
        self._lanes, self._rows, self._targets = (torch.from_numpy(table).to(device) for table in tables)

    def keys(self, layer: int, new: Tensor) -> Tensor:
        return self._written(self._slab.keys[layer], new)

    def values(self, layer: int, new: Tensor) -> Tensor:
        return self._written(self._slab.values[layer], new)

    def _written(self, stored: Tensor, new: Tensor) -> Tensor:
        """stored [lanes, capacity, kv_heads, dim], new [kv_heads, N, dim] -> theirs [places, keys, kv_heads, dim]."""
        stored.flatten(0, 1).index_copy_(0, self._targets, new.index_select(1, self._rows).transpose(0, 1))
        begun = stored[:, : self.num_keys]
        return begun.index_select(0, self._lanes) if self._neighbors is None else begun[self._neighbors]


class Bunch:
    """For one pass."""

    def __init__(self, members: Sequence[Placed]) -> None:
        slabs: dict[Slab, list[Placed]] = defaultdict(list)
        for member in members:
            slabs[member[1].slot.store.slab].append(member)
        ordered: list[Placed] = []
        self._parts: list[_Lanes] = []
        self._slot = members[0][1].slot
        device = self._slot.shape.device
        for slab, ours in slabs.items():
            ours.sort(key=_lane)
            self._parts.append(_Lanes(slab, len(ordered), ours, device))
            ordered.extend(ours)
        self._members = [piece for _, piece in ordered]
        self._num_rows = max(piece.num_rows for piece in self._members)
        self._num_keys = max(part.num_keys for part in self._parts)
        self._masks: dict[tuple[int | None, int], Tensor] = {}
        padded = np.zeros((len(ordered), self._num_rows), dtype=np.int64)
        rows, back = [], []
        for place, (first, piece) in enumerate(ordered):
            count = np.arange(piece.num_rows)
            padded[place, : piece.num_rows] = first + count
            rows.append(first + count)
            back.append(place * self._num_rows + count)
        tables = [padded.ravel(), np.concatenate(rows), np.concatenate(back)]
        self._padded, self._rows, self._back = (torch.from_numpy(table).to(device) for table in tables)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: Call, out: Tensor) -> None:
        """query [heads, N, dim], key and value [kv_heads, N, dim], out [N, heads, value_dim]: of the whole batch."""
        keys = self._together([part.keys(layer, key) for part in self._parts])
        values = self._together([part.values(layer, value) for part in self._parts])
        (heads, kv_heads), count = (query.shape[0], key.shape[0]), len(self._members)
        group = heads // kv_heads
        rows = query.index_select(1, self._padded).view(kv_heads, group, count, self._num_rows, -1)
        rows = rows.permute(2, 0, 1, 3, 4).reshape(count, kv_heads, group * self._num_rows, -1)
        mask = self._mask(call.window, group)
        if call.softcap is None and self._slot.prefix is None:
            answer = scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=call.scaling)
        else:
            answer = self._by_hand(rows, keys, values, mask, layer, call)
        answer = answer.view(count, kv_heads, group, self._num_rows, -1).permute(0, 3, 1, 2, 4)
        answer = answer.reshape(count * self._num_rows, heads, -1)
        out.index_copy_(0, self._rows, answer.index_select(0, self._back))

    def _together(self, parts: Sequence[Tensor]) -> Tensor:
        """[places, keys, kv_heads, dim] of every slab -> [members, kv_heads, keys, dim], padded with zeros: what is
        masked must be a number too."""
        if len(parts) == 1:
            return parts[0].transpose(1, 2)
        everybody = parts[0].new_zeros(len(self._members), self._num_keys, *parts[0].shape[2:])
        for part, own in zip(self._parts, parts, strict=True):
            everybody[part.places, : part.num_keys] = own
        return everybody.transpose(1, 2)

    def _by_hand(self, rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, layer: int, call: Call) -> Tensor:
        """rows [members, kv_heads, n, dim], keys and values [members, kv_heads, keys, dim] -> as rows."""
        members, kv_heads, count, _ = rows.shape
        shared = self._slot.shared(layer)
        together = rows.transpose(0, 1).reshape(kv_heads, members * count, -1)
        scores = [torch.bmm(together, part.transpose(1, 2)).view(kv_heads, members, count, -1) for part, _ in shared]
        own = torch.matmul(rows, keys.transpose(2, 3))
        everything = torch.cat([*(each.transpose(0, 1) for each in scores), own], dim=-1) * call.scaling
        if call.softcap is not None:
            everything = torch.tanh(everything / call.softcap) * call.softcap
        weights = (everything + mask).softmax(-1, dtype=torch.float32).to(rows.dtype)
        shares = torch.split(weights, [*(part.shape[1] for part, _ in shared), self._num_keys], dim=-1)
        answer = torch.matmul(shares[-1], values)
        for share, (_, part) in zip(shares, shared, strict=False):
            of_shared = torch.bmm(share.transpose(0, 1).reshape(kv_heads, members * count, -1), part)
            answer = answer + of_shared.view(kv_heads, members, count, -1).transpose(0, 1)
        return answer

    def _mask(self, window: int | None, group: int) -> Tensor:
        """Additive [members, 1, group * rows, start + keys]; padded rows see everything, and are thrown away."""
        if window is not None and all(piece.narrowed(window) is None for piece in self._members):
            window = None
        if (window, group) not in self._masks:
            start = self._slot.start
            bias = np.zeros((len(self._members), self._num_rows, start + self._num_keys), dtype=np.float32)
            for place, piece in enumerate(self._members):
                held, count = piece.slot.length, piece.num_rows
                bias[place, :count, held + count :] = -np.inf
                bias[place, :count, held : held + count][~piece.visible()] = -np.inf
                if window is not None:
                    rows = np.array(piece.positions)
                    columns = np.concatenate([np.arange(held), rows])
                    bias[place, :count, : held + count][rows[:, None] - columns[None, :] >= window] = -np.inf
            shape = self._slot.shape
            mask = torch.from_numpy(bias).to(device=shape.device, dtype=shape.dtype)
            self._masks[window, group] = mask.repeat(1, group, 1)[:, None]
        return self._masks[window, group]


def bunches(placed: Sequence[Placed]) -> tuple[list[Bunch], list[Placed]]:
    """Those who attend together, and those who go alone."""
    kinds: dict[tuple[Prefix | None, int], list[Placed]] = defaultdict(list)
    alone: list[Placed] = []
    for first, piece in placed:
        size = next((most for most in _FEW_ROWS if piece.num_rows <= most), 0)
        if size and piece.slot.store.slab.num_lanes > 1:
            kinds[piece.slot.prefix, size].append((first, piece))
        else:
            alone.append((first, piece))
    found: list[Bunch] = []
    for (_, size), kind in kinds.items():
        for members in _alike(kind, size):
            if len(members) > 1:
                found.append(Bunch(members))
            else:
                alone.extend(members)
    return found, alone


def _alike(kind: Sequence[Placed], num_rows: int) -> list[list[Placed]]:
    """Those of about as many keys, and no more of them than have room for their scores."""
    groups: list[list[Placed]] = []
    longest = most = 0
    for member in sorted(kind, key=lambda placed: -_own_keys(placed[1])):
        slot, own = member[1].slot, _own_keys(member[1])
        if not groups or len(groups[-1]) == most or longest > _MAX_PADDING * own + _FEW_KEYS:
            groups.append([])
            longest, most = own, max(1, _MOST_SCORES // (num_rows * (slot.start + own)))
        groups[-1].append(member)
    return groups


def _lane(placed: Placed) -> int:
    return placed[1].slot.store.lane


def _are_neighbors(lanes: Sequence[int]) -> bool:
    return list(lanes) == list(range(lanes[0], lanes[0] + len(lanes)))


def _own_keys(piece: Piece) -> int:
    return piece.slot.length - piece.slot.start + piece.num_rows
