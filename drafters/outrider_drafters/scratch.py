"""The scratch rows of one drafting: nodes that were expanded, who descends from whom, how deep. Knows no family."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

INITIAL_ROWS = 64


class Scratch:
    """Ancestry of the expanded nodes; -1 is the root, scratch rows are numbered from 0 in order of expansion."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._num_rows = 0
        # Row and entry 0 are the root's; columns are scratch rows. A root has no ancestor among these.
        self._sees = torch.zeros(1 + INITIAL_ROWS, INITIAL_ROWS, dtype=torch.bool, device=self._device)
        self._depths = torch.zeros(1 + INITIAL_ROWS, dtype=torch.int64, device=self._device)

    def add(self, parents: Tensor, num_standing: int) -> tuple[Tensor, Tensor]:
        """Enter one level of nodes under their parents [n].

        Returns their depths [n] (1 for the root's children) and their mask [n, num_standing + rows]: they see all
        standing rows, their ancestors and themselves.
        """
        first, end = self._num_rows, self._num_rows + len(parents)
        self._make_room(end)
        sees = self._sees[parents + 1, :end]
        sees[:, first:].fill_diagonal_(True)
        self._sees[first + 1 : end + 1, :end] = sees
        depths = self._depths[parents + 1] + 1
        self._depths[first + 1 : end + 1] = depths
        self._num_rows = end
        return depths, F.pad(sees, (num_standing, 0), value=True)

    def _make_room(self, num_rows: int) -> None:
        while num_rows > self._sees.shape[1]:
            room = self._sees.shape[1]
            self._sees = F.pad(self._sees, (0, room, 0, room))
            self._depths = F.pad(self._depths, (0, room))
