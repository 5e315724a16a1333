"""Drafting on the server, for sessions that ask for it: the drafters' client halves, run beside the target."""

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
    """What a session's drafter may read: the tokens up to and including the root, and the feature rows of positions
    from a first one on, with where they begin; None where there are no features."""

    tokens: Sequence[int]
    features: Callable[[int], tuple[int, NDArray[np.float32]]] | None


class SessionDrafter:
    """One session's draft state, brought up to date before each draft."""

    def __init__(self, drafter: Drafter) -> None:
        self._state = drafter.new_state()
        self._tokens: list[int] = []  # what the state holds

    @torch.inference_mode()
    def grow(self, known: DraftContext, shape: TreeShape, cancelled: Callable[[], bool]) -> DraftTree:
        """A draft below the root; `cancelled` ends it between levels."""
        tokens = list(known.tokens)
        sync_tokens(self._state, self._tokens, tokens)
        self._tokens = tokens
        if known.features is not None:
            first, rows = known.features(self._state.num_features)
            if len(rows):
                self._state.add_features(first, torch.from_numpy(rows))
        return grow_tree(self._state, shape, cancelled)
