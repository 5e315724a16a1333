"""The tree attention mask of one draft: which rows each expanded node may attend to, and its depth."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from outrider_proto.tree import ROOT


class TreeMask:
    """Ancestors of the expanded nodes. Draft rows are numbered from 0 in order of expansion; -1 is the root."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.clear()

    def clear(self) -> None:
        """Drop all draft rows."""
        self._lines: list[list[int]] = []  # of each row: its ancestors' rows and its own

    def add(self, parents: Sequence[int], num_text_rows: int) -> tuple[Tensor, Tensor]:
        """Add one level of nodes under their parents.

        Returns their depths [n] (1 for the root's children) and their mask [n, num_text_rows + draft rows]: each node
        sees all text rows, its ancestors and itself.
        """
        first = len(self._lines)
        for i, parent in enumerate(parents):
            above = [] if parent == ROOT else self._lines[parent]
            self._lines.append([*above, first + i])
        lines = self._lines[first:]
        sees = np.zeros((len(lines), num_text_rows + len(self._lines)), dtype=np.bool_)
        sees[:, :num_text_rows] = True
        for row, line in zip(sees[:, num_text_rows:], lines, strict=True):
            row[line] = True
        depths = torch.tensor([len(line) for line in lines], device=self._device)
        return depths, torch.from_numpy(sees).to(self._device)
