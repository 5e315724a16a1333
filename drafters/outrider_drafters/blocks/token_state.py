"""The tokens of a draft state, and how many features it has. Knows no family."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT


class TokenState:
    """Tokens, and the number of leading positions with features: the newest may lack theirs, the root may have it."""

    def __init__(self, feature_width: int) -> None:
        self.tokens: list[int] = []
        self.num_features = 0
        self._width = feature_width

    @property
    def usable(self) -> int:
        """Number of features that a drafter may read."""
        # Without the root's own: a drafter pairs feature t with token t + 1, which the root does not have yet.
        return max(0, min(self.num_features, len(self.tokens) - 1))

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def add_features(self, first: int, rows: Tensor) -> Tensor:
        """Count rows of positions first, first + 1, ... and return those that are new. Raises UsageError."""
        self.check_features(first, rows)
        if first > self.num_features:
            raise UsageError(f"features from position {first}: there are {self.num_features}, the next one is lacking")
        lacking = rows[self.num_features - first :]
        self.num_features += len(lacking)
        return lacking

    def check_features(self, first: int, rows: Tensor) -> None:
        """Raise UsageError for rows of another width, or a position without a token."""
        if rows.ndim != 2 or rows.shape[1] != self._width:
            raise UsageError(f"features of shape {list(rows.shape)}: need [n, {self._width}]")
        end = first + len(rows)
        if first < 0 or end > len(self.tokens):
            raise UsageError(f"features of positions {first} to {end - 1}: there are {len(self.tokens)} tokens")

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens and their features. Raises UsageError if there are fewer."""
        if not 0 <= num_tokens <= len(self.tokens):
            raise UsageError(f"rollback to {num_tokens} tokens: there are {len(self.tokens)}")
        del self.tokens[num_tokens:]
        self.num_features = min(self.num_features, num_tokens)

    def need_root(self) -> None:
        """Raise UsageError if there is no token to draft from."""
        if not self.tokens:
            raise UsageError("nothing to draft from: append the prompt's tokens first")


class TreeMask:
    """Ancestors of the expanded nodes. Draft rows are numbered from 0 in order of expansion; -1 is the root."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.clear()

    def clear(self) -> None:
        """Drop all draft rows."""
        self._lines: list[list[int]] = []  # of each row: its ancestors' rows and its own

    def add(self, parents: Sequence[int], num_text_rows: int) -> tuple[Tensor, Tensor]:
        """Add one level of nodes under their parents; return their depths [n], from 1, and their mask.

        It is [n, num_text_rows + draft rows]: each node sees all text rows, its ancestors and itself.
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
