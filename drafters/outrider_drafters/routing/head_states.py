"""The states of several heads on one text, each on its own: the plain form of batched_heads.py."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.trees.grow import Level
from outrider_proto.tree import DraftTree


class HeadStates(Protocol):
    """States of heads kept in step by the same tokens and features. Heads are identified by number."""

    num_passes: int  # forward passes so far; one pass for several heads counts once

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_features(self) -> int: ...

    def max_levels(self, head: int) -> int: ...

    def append(self, tokens: Sequence[int]) -> None: ...

    def add_features(self, first: int, rows: Tensor) -> None: ...

    def rollback(self, num_tokens: int) -> None: ...

    def start(self) -> None:
        """Start a new draft and drop the last one."""
        ...

    def root(self, head: int) -> Tensor:
        """Logits [V] for the root's successor, computed once per draft."""
        ...

    def expand(self, levels: Mapping[int, Level]) -> dict[int, Tensor]:
        """Compute logits [n, V] for each head's level."""
        ...

    def tree(self, head: int, tree: DraftTree) -> Tensor:
        """Start a new draft of one head; its logits [1 + n, V] after the root and every node."""
        ...


class SeparateStates:
    """One state per head. Heads without features receive none."""

    def __init__(self, heads: Sequence[Drafter]) -> None:
        self.num_passes = 0
        self._states = [head.new_state() for head in heads]
        self._roots: dict[int, Tensor] = {}
        self._with_features = [state for state, head in zip(self._states, heads, strict=True) if head.tap.fingerprint]

    @property
    def num_tokens(self) -> int:
        return self._states[0].num_tokens

    @property
    def num_features(self) -> int:
        return self._with_features[0].num_features if self._with_features else 0

    def max_levels(self, head: int) -> int:
        return self._states[head].max_levels

    def append(self, tokens: Sequence[int]) -> None:
        for state in self._states:
            state.append(tokens)

    def add_features(self, first: int, rows: Tensor) -> None:
        for state in self._with_features:
            state.add_features(first, rows)

    def rollback(self, num_tokens: int) -> None:
        for state in self._states:
            state.rollback(num_tokens)

    def start(self) -> None:
        self._roots.clear()

    def root(self, head: int) -> Tensor:
        if head not in self._roots:
            self._roots[head] = self._states[head].root_logits()
            self.num_passes += 1
        return self._roots[head]

    def expand(self, levels: Mapping[int, Level]) -> dict[int, Tensor]:
        self.num_passes += len(levels)
        return {head: self._states[head].expand(level.tokens, level.parents) for head, level in levels.items()}

    def tree(self, head: int, tree: DraftTree) -> Tensor:
        self.num_passes += 1
        return self._states[head].tree_logits(tree)
