"""EAGLE-2's dynamic draft tree (arXiv 2406.16858), grown from any draft state. Knows no family.

Each level expands `breadth` nodes, the likeliest of those the level before gave, a node's likelihood being the product
along its path. Each expanded node offers its `breadth` likeliest successors. Of all nodes offered, the `budget`
likeliest make the tree, numbered in the order they were offered: a parent comes before its children and is at least as
likely, so it is always among them.

    root -> a b c (offered, all expanded) -> 9 offered, the 3 best of these expanded -> 9 offered ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
        growth.offer(state.expand(growth.frontier.tokens, growth.frontier.parents))
    return growth.tree()


@dataclass(frozen=True, slots=True, eq=False)
class _Frontier:
    """Nodes to expand next; all [n]."""

    tokens: Tensor
    scores: Tensor  # log-probability of the whole path
    parents: Tensor  # scratch row of each one's parent
    offers: Tensor  # its number among all nodes offered


class _Growth:
    def __init__(self, root_logits: Tensor, shape: TreeShape) -> None:
        self._shape = shape
        self._tokens: list[Tensor] = []
        self._scores: list[Tensor] = []
        self._parents: list[Tensor] = []  # numbers among the offers
        self._num_offers = 0
        self._first_row = ROOT  # scratch row of the frontier's first node
        nobody = torch.full((1,), ROOT, device=root_logits.device)
        self.frontier = _Frontier(nobody, torch.zeros(1, device=root_logits.device), nobody, nobody)
        self.offer(root_logits.unsqueeze(0))

    def offer(self, logits: Tensor) -> None:
        """Take the frontier's logits [n, V]: its likeliest successors go on offer, the best become the new frontier."""
        tokens = logits.topk(min(self._shape.breadth, logits.shape[1])).indices
        scores = logits.float().log_softmax(-1).gather(1, tokens) + self.frontier.scores.unsqueeze(1)
        fan = tokens.shape[1]
        parents = self.frontier.offers.repeat_interleave(fan)
        tokens, scores = tokens.flatten(), scores.flatten()
        best = scores.topk(min(self._shape.breadth, len(scores))).indices
        self.frontier = _Frontier(tokens[best], scores[best], self._first_row + best // fan, self._num_offers + best)
        self._first_row += len(logits)
        self._tokens.append(tokens)
        self._scores.append(scores)
        self._parents.append(parents)
        self._num_offers += len(tokens)

    def tree(self) -> DraftTree:
        """The best nodes of all on offer."""
        # A sure child scores exactly as its parent: the stable sort then keeps the parent, which came first.
        ranked = torch.cat(self._scores).sort(descending=True, stable=True).indices
        kept = ranked[: self._shape.budget].sort().values
        columns = torch.stack((kept, torch.cat(self._tokens)[kept], torch.cat(self._parents)[kept]))
        offers, tokens, parents = columns.tolist()
        number = {offer: node for node, offer in enumerate(offers)} | {ROOT: ROOT}
        return DraftTree(tuple(tokens), tuple(number[parent] for parent in parents))
