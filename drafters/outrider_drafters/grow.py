"""EAGLE-2's dynamic draft tree (arXiv 2406.16858), grown from any draft state. Knows no family.

Each level expands `breadth` nodes, the likeliest of those the level before gave, a node's likelihood being the product
along its path. Each expanded node offers its `breadth` likeliest successors. Of all nodes offered, the `budget`
likeliest make the tree, numbered in the order they were offered: a parent comes before its children and is at least as
likely, so it is always among them.

    root -> a b c (offered, all expanded) -> 9 offered, the 3 best of these expanded -> 9 offered ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outrider_drafters.drafter import DraftState
from outrider_drafters.shape import TreeShape
from outrider_proto.tree import ROOT, DraftTree


@torch.inference_mode()
def grow_tree(state: DraftState, shape: TreeShape, cancelled: Callable[[], bool] = lambda: False) -> DraftTree:
    """Draft a tree from the state's root. `cancelled` is asked before each further level; what is there is kept."""
    growth = _Growth(state.root_logits(), shape)
    for _ in range(shape.levels - 1):
        if cancelled():
            break
        growth.expand(state)
    return growth.tree()


class _Growth:
    """All nodes on offer, as plain numbers: tensors of sixteen values cost more than sorting them."""

    def __init__(self, root_logits: Tensor, shape: TreeShape) -> None:
        self._shape = shape
        self._tokens: list[int] = []
        self._scores: list[float] = []  # log-probability of the whole path
        self._parents: list[int] = []  # numbers among the offers
        self._rows = {ROOT: ROOT}  # scratch rows of the offers that were expanded
        self._frontier: list[int] = []  # offers to expand next
        self._offer([ROOT], root_logits.unsqueeze(0))

    def expand(self, state: DraftState) -> None:
        """One level more."""
        nodes = self._frontier
        logits = state.expand(
            [self._tokens[node] for node in nodes], [self._rows[self._parents[node]] for node in nodes]
        )
        for node in nodes:
            self._rows[node] = len(self._rows) - 1
        self._offer(nodes, logits)

    def tree(self) -> DraftTree:
        """The best nodes of all on offer."""
        kept = sorted(self._best(range(len(self._tokens)), self._shape.budget))
        number = {offer: node for node, offer in enumerate(kept)} | {ROOT: ROOT}
        return DraftTree(
            tuple(self._tokens[offer] for offer in kept), tuple(number[self._parents[offer]] for offer in kept)
        )

    def _offer(self, nodes: Sequence[int], logits: Tensor) -> None:
        """Put the likeliest successors of the nodes on offer, logits [nodes, V]; the best are the new frontier."""
        first = len(self._tokens)
        tokens = logits.topk(min(self._shape.breadth, logits.shape[1])).indices
        gains = logits.float().log_softmax(-1).gather(1, tokens)
        for node, successors, scores in zip(nodes, tokens.tolist(), gains.tolist(), strict=True):
            so_far = 0.0 if node == ROOT else self._scores[node]
            self._tokens += successors
            self._scores += [so_far + score for score in scores]
            self._parents += [node] * len(successors)
        self._frontier = self._best(range(first, len(self._tokens)), self._shape.breadth)

    def _best(self, offers: Sequence[int], count: int) -> list[int]:
        """The likeliest first; of equals the earlier: a sure child scores exactly as its parent, which must stay."""
        return sorted(offers, key=lambda offer: -self._scores[offer])[:count]
