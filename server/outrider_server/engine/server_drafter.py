"""Drafting on the server for sessions that ask for it, beside the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from outrider_drafters.contracts.drafter import Drafter, sync_tokens
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.grow import grow_tree
from outrider_proto.tree import DraftTree


@dataclass(frozen=True, slots=True)
class DraftContext:
    """The input of a draft: tokens up to the root, and a getter of feature rows, None without features."""

    tokens: Sequence[int]
    features: Callable[[int], tuple[int, NDArray[np.float32]]] | None


class SessionDrafter:
    """One session's draft state, synchronized before each draft."""

    def __init__(self, drafter: Drafter) -> None:
        self._state = drafter.new_state()
        self._tokens: list[int] = []  # what the state holds

    @torch.inference_mode()
    def grow(self, known: DraftContext, shape: TreeShape, cancelled: Callable[[], bool]) -> DraftTree:
        """Return a draft below the root; `cancelled` ends it between levels."""
        tokens = list(known.tokens)
        sync_tokens(self._state, self._tokens, tokens)
        self._tokens = tokens
        if known.features is not None:
            first, rows = known.features(self._state.num_features)
            if len(rows):
                self._state.add_features(first, torch.from_numpy(rows))
        return grow_tree(self._state, shape, cancelled)
