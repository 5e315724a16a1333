"""Drafting on the server for sessions that ask for it, beside the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from outrider_drafters.contracts.drafter import Drafter, sync_tokens
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.grow import TreeGrowth
from outrider_drafters.trees.tree_tuner import TreeTuner

# Returns feature rows, from the given one on or later, and where they begin. None without features.
FeatureGetter: TypeAlias = Callable[[int], tuple[int, NDArray[np.float32]]] | None


class SessionDrafter:
    """One session's draft state, synchronized before each draft."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.alone = False  # its levels run in no pass with those of others: one such pass has failed
        self._state = drafter.new_state()
        self._tokens: list[int] = []  # what the state holds
        self._num_same = 0  # first tokens that are surely still the session's
        self.begun_at = 0.0  # when the caller began its last draft
        self.tuner: TreeTuner | None = None  # of trees as large as pay

    def truncate(self, length: int) -> None:
        """Note that the session kept only its first `length` tokens."""
        self._num_same = min(self._num_same, length)

    def clear(self) -> None:
        """Give up the state, which the next draft makes again: its memory is in no budget."""
        self._state = self.drafter.new_state()
        self._tokens = []
        self._num_same = 0

    @torch.inference_mode()
    def begin(self, held: Sequence[int], chain: Sequence[int], features: FeatureGetter, shape: TreeShape) -> TreeGrowth:
        """Begin a draft with its first level, below the last of `chain`: tokens behind those that the session holds."""
        # Only what may differ is looked at: a long text would take longer to compare than to draft for.
        first = self._num_same
        newer = [*held[first:], *chain]
        sync_tokens(self._state, self._tokens[first:], newer, first)
        self._tokens[first:] = newer
        self._num_same = len(held)
        if features is not None:
            first, rows = features(self._state.num_features)
            if len(rows):
                self._state.add_features(first, torch.from_numpy(rows))
        return TreeGrowth(self._state, shape)
