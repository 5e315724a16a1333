"""The client's half of a drafter, as every family offers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_proto.frames import TapInfo
from outrider_proto.packing import common_prefix_len
from outrider_proto.tree import DraftTree

UNLIMITED = 2**31  # what `max_levels` answers where a drafter can go on from its own guesses


class DraftState(Protocol):
    """What a drafter knows of one text. Position p's feature is what the target knew after processing token p.

    After any calls the state equals a fresh one that was given the same tokens and features.
    """

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_features(self) -> int:
        """Positions 0 .. num_features - 1 have theirs; the newest tokens may lack them. A drafter that eats the newest
        feature alone (TapInfo.newest_only) counts as having all before it."""
        ...

    @property
    def max_levels(self) -> int:
        """Levels it can draft from here: UNLIMITED, or as many as its heads reach past the newest feature, maybe 0."""
        ...

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens that stand, committed or unverified; the last one is the root."""
        ...

    def add_features(self, first: int, rows: Tensor) -> None:  # [n, width] float32
        """Feature rows of positions first, first + 1, ...; those it has are ignored, a gap raises UsageError unless it
        only wants the newest."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens; the features of the others go too."""
        ...

    def root_logits(self) -> Tensor:
        """Logits [V] for the root's successor; -inf for one it would never draft. Ends any earlier drafting: its
        draft rows are forgotten. Raises UsageError where `max_levels` is 0."""
        ...

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Logits [n, V] for the successors of n drafted nodes, given as their tokens and their parents' draft rows.

        Draft rows are numbered from 0 in order of expansion since root_logits; -1 is the root. A call's nodes are on
        one level, and levels come in order, at most `max_levels` of them, counting the root's. Where `max_levels` is
        UNLIMITED, a call may mix levels, below rows of earlier calls.
        """
        ...

    def tree_logits(self, tree: DraftTree) -> Tensor:
        """As root_logits, but for the successors of the root and of every node [1 + n, V], in as few passes as it can.
        Node i's draft row is i; a level's nodes must come before those of the next."""
        ...


class Drafter(Protocol):
    @property
    def family(self) -> str: ...

    @property
    def tap(self) -> TapInfo:
        """The features it wants from the server; an empty fingerprint for none."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def stale_tolerant(self) -> bool:
        """Whether it drafts about as well while the newest tokens' features are still on their way."""
        ...

    @property
    def tree_in_one_pass(self) -> bool:
        """Whether tree_logits is one pass; else it is one for each level."""
        ...

    @property
    def plan(self) -> TreePlan | None:
        """The trees it was made for, where that is a fixed set of choices; None: any."""
        ...

    def new_state(self) -> DraftState: ...


def sync_tokens(state: DraftState, held: Sequence[int], tokens: Sequence[int]) -> None:
    """Bring a state from the tokens `held` to `tokens`: roll back to their common prefix, then append the rest."""
    common = common_prefix_len(held, tokens)
    if common < len(held):
        state.rollback(common)
    state.append(tokens[common:])


def level_by_level(
    tree: DraftTree, root_logits: Tensor, expand: Callable[[Sequence[int], Sequence[int]], Tensor]
) -> Tensor:
    """A state's tree_logits where a node needs what its parent's pass gave: from the root's [V] and its expand."""
    logits = [root_logits.unsqueeze(0)]
    depths = tree.depths()
    for depth in range(1, 1 + max(depths, default=0)):
        level = [node for node in range(len(tree)) if depths[node] == depth]
        logits.append(expand([tree.tokens[node] for node in level], [tree.parents[node] for node in level]))
    return torch.cat(logits)
