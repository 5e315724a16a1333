"""Pieces of few rows that attend together: their stores lie side by side in one slab, behind the same prefix or none.

    lane 0    K/V of session a  . .       one product [lanes, kv_heads, rows, keys] for all of them, padded to the most
    lane 1    (nobody's, or idle)         rows and the most keys; what is padded is masked, or thrown away. Keys of a
    lane 2    K/V of session b  .         prefix are multiplied once, with the queries of all who share it.

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

from outrider_server.piece import Call, Piece

Placed: TypeAlias = tuple[int, Piece]  # and where its rows begin in the flat batch
_FEW_ROWS = (16, 64)  # pieces of one kind are padded to one another's rows
_MAX_GAP = 1  # idle lanes between two that are worth their waste
_MAX_WASTE = 3  # times the arithmetic of the pieces alone


class Bunch:
    """For one pass."""

    def __init__(self, members: Sequence[Placed]) -> None:
        pieces = [piece for _, piece in members]
        lanes = [piece.slot.store.lane for piece in pieces]
        slot = pieces[0].slot
        self._slab = slot.store.slab
        self._slot = slot
        self._members = pieces
        self._lanes = slice(lanes[0], lanes[-1] + 1)
        self._places = [lane - lanes[0] for lane in lanes]  # of the members among the lanes
        self._num_lanes = lanes[-1] + 1 - lanes[0]
        self._num_rows = max(piece.num_rows for piece in pieces)
        self._num_keys = max(_own_keys(piece) for piece in pieces)
        self._masks: dict[tuple[int | None, int], Tensor] = {}
        padded = np.zeros((self._num_lanes, self._num_rows), dtype=np.int64)
        rows, back, targets = [], [], []
        for place, (first, piece) in zip(self._places, members, strict=True):
            count = np.arange(piece.num_rows)
            padded[place, : piece.num_rows] = first + count
            rows.append(first + count)
            back.append(place * self._num_rows + count)
            own = piece.slot.length - piece.slot.start
            targets.append(piece.slot.store.lane * self._slab.capacity + own + count)
        tables = [padded.ravel(), np.concatenate(rows), np.concatenate(back), np.concatenate(targets)]
        self._padded, self._rows, self._back, self._targets = (
            torch.from_numpy(table).to(slot.shape.device) for table in tables
        )

    @property
    def waste(self) -> float:
        """Its arithmetic over that of its pieces alone."""
        return (
            self._num_lanes
            * self._num_rows
            * self._num_keys
            / sum(piece.num_rows * _own_keys(piece) for piece in self._members)
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: Call, out: Tensor) -> None:
        """query [heads, N, dim], key and value [kv_heads, N, dim], out [N, heads, value_dim]: of the whole batch."""
        keys = self._write(self._slab.keys[layer], key)
        values = self._write(self._slab.values[layer], value)
        heads, kv_heads = query.shape[0], key.shape[0]
        group = heads // kv_heads
        rows = query.index_select(1, self._padded).view(kv_heads, group, self._num_lanes, self._num_rows, -1)
        rows = rows.permute(2, 0, 1, 3, 4).reshape(self._num_lanes, kv_heads, group * self._num_rows, -1)
        mask = self._mask(call.window, group)
        if call.softcap is None and self._slot.prefix is None:
            answer = scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=call.scaling)
        else:
            answer = self._by_hand(rows, keys, values, mask, layer, call)
        answer = answer.view(self._num_lanes, kv_heads, group, self._num_rows, -1).permute(0, 3, 1, 2, 4)
        answer = answer.reshape(self._num_lanes * self._num_rows, heads, -1)
        out.index_copy_(0, self._rows, answer.index_select(0, self._back))

    def _write(self, stored: Tensor, new: Tensor) -> Tensor:
        """stored [lanes, capacity, kv_heads, dim], new [kv_heads, N, dim] -> its own [lanes, kv_heads, keys, dim]."""
        stored.flatten(0, 1).index_copy_(0, self._targets, new.index_select(1, self._rows).transpose(0, 1))
        return stored[self._lanes, : self._num_keys].transpose(1, 2)

    def _by_hand(self, rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, layer: int, call: Call) -> Tensor:
        """rows [lanes, kv_heads, n, dim], keys and values [lanes, kv_heads, keys, dim] -> [lanes, kv_heads, n, dim]."""
        lanes, kv_heads, count, _ = rows.shape
        shared = self._slot.shared(layer)
        together = rows.transpose(0, 1).reshape(kv_heads, lanes * count, -1)
        scores = [torch.bmm(together, part.transpose(1, 2)).view(kv_heads, lanes, count, -1) for part, _ in shared]
        own = torch.matmul(rows, keys.transpose(2, 3))
        everything = torch.cat([*(each.transpose(0, 1) for each in scores), own], dim=-1) * call.scaling
        if call.softcap is not None:
            everything = torch.tanh(everything / call.softcap) * call.softcap
        weights = (everything + mask).softmax(-1, dtype=torch.float32).to(rows.dtype)
        shares = torch.split(weights, [*(part.shape[1] for part, _ in shared), self._num_keys], dim=-1)
        answer = torch.matmul(shares[-1], values)
        for share, (_, part) in zip(shares, shared, strict=False):
            of_shared = torch.bmm(share.transpose(0, 1).reshape(kv_heads, lanes * count, -1), part)
            answer = answer + of_shared.view(kv_heads, lanes, count, -1).transpose(0, 1)
        return answer

    def _mask(self, window: int | None, group: int) -> Tensor:
        """Additive [lanes, 1, group * rows, start + keys]; what nobody asks for sees everything, and is thrown away."""
        if window is not None and all(piece.positions[-1] < window for piece in self._members):
            window = None
        if (window, group) not in self._masks:
            start = self._slot.start
            bias = np.zeros((self._num_lanes, self._num_rows, start + self._num_keys), dtype=np.float32)
            for place, piece in zip(self._places, self._members, strict=True):
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
    kinds: dict[tuple[object, object, int], list[Placed]] = defaultdict(list)
    alone: list[Placed] = []
    for first, piece in placed:
        size = next((most for most in _FEW_ROWS if piece.num_rows <= most), 0)
        if size and piece.slot.store.slab.num_lanes > 1:
            kinds[piece.slot.store.slab, piece.slot.prefix, size].append((first, piece))
        else:
            alone.append((first, piece))
    found: list[Bunch] = []
    for kind in kinds.values():
        for run in _runs(kind):
            bunch = Bunch(run) if len(run) > 1 else None
            if bunch is not None and bunch.waste <= _MAX_WASTE:
                found.append(bunch)
            else:
                alone.extend(run)
    return found, alone


def _runs(members: Sequence[Placed]) -> list[list[Placed]]:
    """By neighbouring lanes."""
    runs: list[list[Placed]] = []
    for member in sorted(members, key=lambda member: member[1].slot.store.lane):
        lane = member[1].slot.store.lane
        if runs and lane - runs[-1][-1][1].slot.store.lane <= 1 + _MAX_GAP:
            runs[-1].append(member)
        else:
            runs.append([member])
    return runs


def _own_keys(piece: Piece) -> int:
    return piece.slot.length - piece.slot.start + piece.num_rows
