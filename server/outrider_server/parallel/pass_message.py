"""The message by which rank 0 tells the others to run a pass."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_HEADER = struct.Struct("<?iii")  # on slots, batch, rows, rows to keep (-1: all)
_ALL = -1


@dataclass(frozen=True, slots=True, eq=False)
class PassMessage:
    """One pass. With `on_slots` false it uses the model's own attention, on the heads that each rank has."""

    tokens: Tensor  # [1, N] int64
    positions: Tensor  # [1, N] int64
    keep: Tensor | None  # [n] int64: the rows whose logits count; None for all
    on_slots: bool

    def packed(self) -> bytes:
        num_keep = _ALL if self.keep is None else len(self.keep)
        parts = [_HEADER.pack(self.on_slots, *self.tokens.shape, num_keep)]
        parts += [rows.cpu().numpy().tobytes() for rows in (self.tokens, self.positions)]
        if self.keep is not None:
            parts.append(self.keep.cpu().numpy().tobytes())
        return b"".join(parts)

    @classmethod
    def unpacked(cls, data: bytes, device: torch.device) -> PassMessage:
        on_slots, batch, num_rows, num_keep = _HEADER.unpack_from(data)
        # A copy: bytes are read-only, and torch does not support tensors over read-only memory.
        values = torch.from_numpy(np.frombuffer(data, np.int64, offset=_HEADER.size).copy()).to(device)
        count = batch * num_rows
        tokens, positions = values[:count].view(batch, num_rows), values[count : 2 * count].view(batch, num_rows)
        return cls(tokens, positions, None if num_keep == _ALL else values[2 * count :], on_slots)

    def arguments(self) -> dict[str, Any]:  # Any: what a model takes
        """Return the arguments of the model's forward(), without the slots."""
        return {
            "input_ids": self.tokens,
            "position_ids": self.positions,
            "use_cache": False,
            "logits_to_keep": 0 if self.keep is None else self.keep,
        }
