"""The contract of a drafter's client half, which every family implements. Knows no family."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider_drafters.blocks.token_state import TokenState
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_proto.frames import TapInfo
from outrider_proto.packing import common_prefix_len
from outrider_proto.tree import DraftTree

UNLIMITED = 2**31  # max_levels of a drafter that can draft on from its own output


class DraftState(Protocol):
    """One text as a drafter sees it. Position p's feature is what the target computed for token p.

    After any sequence of calls, the state equals a fresh one that was given the same tokens and features.
    """

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_features(self) -> int:
        """Number of leading positions with features; the newest tokens may lack theirs.

        A drafter that reads only the newest feature (TapInfo.newest_only) counts as having all before it.
        """

    @property
    def max_levels(self) -> int:
        """Levels it can draft from here: UNLIMITED, or as many as its heads reach past the newest feature."""

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text, committed or unverified. The last one is the root of the next draft."""

    def add_features(self, first: int, rows: Tensor) -> None:  # [n, width] float32
        """Add the feature rows of positions first, first + 1, ...; rows it already has are ignored.

        Raises UsageError for a gap, unless the drafter reads only the newest feature.
        """

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens and their features."""

    def root_logits(self) -> Tensor:
        """Logits [V] for the root's successor; -inf for tokens it can never draft.

        Starts a new draft and drops the draft rows of the last one. Raises UsageError where `max_levels` is 0.
        """

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Compute logits [n, V] for the successors of n nodes, given by their tokens and their parents' draft rows.

        Draft rows are numbered from 0 in order of expansion since root_logits; -1 is the root. A call's nodes are on
        one level, and levels come in order, at most `max_levels` of them, counting the root's. Where `max_levels` is
        UNLIMITED, a call may mix levels, below rows of earlier calls.
        """

    def tree_logits(self, tree: DraftTree) -> Tensor:
        """Logits [1 + n, V] for the successors of the root and of every node, in as few passes as possible.

        These are what the drafter holds likely, also where it drafts something else (families/suffix/hybrid.py).
        Like root_logits it starts a new draft. Node i gets draft row i; nodes must be sorted by level. What is expanded
        below them afterwards are bonuses, the roots of drafts made ahead of a verdict (trees/predraft.py).
        """


class WithTokenState(DraftState):
    """Base class of draft states: the part of DraftState that a TokenState answers, and the rest as most have it."""

    _token_state: TokenState

    @property
    def num_tokens(self) -> int:
        return len(self._token_state.tokens)

    @property
    def num_features(self) -> int:
        return self._token_state.num_features

    @property
    def max_levels(self) -> int:
        return UNLIMITED

    def append(self, tokens: Sequence[int]) -> None:
        self._token_state.append(tokens)

    def add_features(self, first: int, rows: Tensor) -> None:
        self._token_state.add_features(first, rows)

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)

    def tree_logits(self, tree: DraftTree) -> Tensor:
        return tree_logits_by_level(tree, self.root_logits(), self.expand)


class Drafter(Protocol):
    """The client half. What most have stands behind the names."""

    family: str
    vocab_size: int
    tap: TapInfo  # the features that it reads from the server; an empty fingerprint for none
    stale_tolerant: bool = False  # it drafts about as well while the newest tokens' features are still on their way
    tree_in_one_pass: bool = False  # tree_logits takes one pass rather than one per level
    levels_per_pass: int = 1  # levels of a draft that a pass gives: of a drafter of blocks as many as a block has
    hint: str = ""  # what to do where the target refuses nearly all of its tokens, if its files leave something open
    plan: TreePlan | None = None  # the tree it was made for, if that is fixed; None: it drafts trees of any shape

    def new_state(self) -> DraftState: ...


def sync_tokens(state: DraftState, held: Sequence[int], tokens: Sequence[int], first: int = 0) -> None:
    """Bring a state from the tokens `held` to `tokens`, both from position `first` on, by their common prefix."""
    common = common_prefix_len(held, tokens)
    if common < len(held):
        state.rollback(first + common)
    state.append(tokens[common:])


def tree_logits_by_level(
    tree: DraftTree, root_logits: Tensor, expand: Callable[[Sequence[int], Sequence[int]], Tensor]
) -> Tensor:
    """Implement tree_logits for a state whose nodes need their parents' pass: one `expand` per level."""
    logits = [root_logits.unsqueeze(0)]
    depths = tree.depths()
    for depth in range(1, 1 + max(depths, default=0)):
        level = [node for node in range(len(tree)) if depths[node] == depth]
        logits.append(expand([tree.tokens[node] for node in level], [tree.parents[node] for node in level]))
    return torch.cat(logits)
