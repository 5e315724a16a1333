"""Draft trees, grown from any draft state. Knows no family.

Dynamic (EAGLE-2, arXiv 2406.16858): each level expands `breadth` nodes, the likeliest of those the level before gave, a
node's likelihood being the product along its path. Each expanded node offers its `breadth` likeliest successors. Of all
nodes offered, the `budget` likeliest make the tree, numbered in the order they were offered: a parent comes before its
children and is at least as likely, so it is always among them.

    root -> a b c (offered, all expanded) -> 9 offered, the 3 best of these expanded -> 9 offered ...

Static (Medusa, arXiv 2401.10774): which ranks are drafted below which node is fixed beforehand (choices.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import assert_never

import torch
from torch import Tensor

from outrider_drafters.choices import Choices
from outrider_drafters.drafter import DraftState
from outrider_drafters.shape import TreePlan, TreeShape
from outrider_proto.tree import ROOT, DraftTree

IMPOSSIBLE = -math.inf


@torch.inference_mode()
def grow_tree(state: DraftState, plan: TreePlan, cancelled: Callable[[], bool] = lambda: False) -> DraftTree:
    """Draft a tree from the state's root, as deep as the state reaches. `cancelled` is asked before each further level;
    what is there is kept."""
    levels = min(plan.levels, state.reach)
    if levels == 0:
        return DraftTree()
    growth = _begin(state.root_logits(), plan)
    for _ in range(levels - 1):
        if cancelled() or not growth.expand(state):
            break
    return growth.tree()


def _begin(root_logits: Tensor, plan: TreePlan) -> _Growth | _FixedGrowth:
    match plan:
        case TreeShape():
            return _Growth(root_logits, plan)
        case Choices():
            return _FixedGrowth(root_logits, plan)
        case _:
            assert_never(plan)


class _Growth:
    """All nodes on offer, as plain numbers: tensors of sixteen values cost more than sorting them."""

    def __init__(self, root_logits: Tensor, shape: TreeShape) -> None:
        self._shape = shape
        self._least = math.log(shape.min_probability) if shape.min_probability else IMPOSSIBLE
        self._tokens: list[int] = []
        self._scores: list[float] = []  # log-probability of the whole path
        self._parents: list[int] = []  # numbers among the offers
        self._rows = {ROOT: ROOT}  # scratch rows of the offers that were expanded
        self._frontier: list[int] = []  # offers to expand next
        self._offer([ROOT], root_logits.unsqueeze(0))

    def expand(self, state: DraftState) -> bool:
        """One level more, if anything is left to expand."""
        nodes = self._frontier
        if not nodes:
            return False
        logits = state.expand(
            [self._tokens[node] for node in nodes], [self._rows[self._parents[node]] for node in nodes]
        )
        for node in nodes:
            self._rows[node] = len(self._rows) - 1
        self._offer(nodes, logits)
        return True

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
            for token, gain in zip(successors, scores, strict=True):
                if gain > IMPOSSIBLE and so_far + gain >= self._least:
                    self._tokens.append(token)
                    self._scores.append(so_far + gain)
                    self._parents.append(node)
        self._frontier = self._best(range(first, len(self._tokens)), self._shape.breadth)

    def _best(self, offers: Sequence[int], count: int) -> list[int]:
        """The likeliest first; of equals the earlier: a sure child scores exactly as its parent, which must stay."""
        return sorted(offers, key=lambda offer: -self._scores[offer])[:count]


class _FixedGrowth:
    """Nodes by their paths of ranks; a level's inner nodes are expanded together, in order."""

    def __init__(self, root_logits: Tensor, choices: Choices) -> None:
        self._choices = choices
        self._level = 0
        self._tokens: dict[tuple[int, ...], int] = {}
        self._rows: dict[tuple[int, ...], int] = {(): ROOT}
        self._fill([()], root_logits.unsqueeze(0))

    def expand(self, state: DraftState) -> bool:
        """One level more, if the choices have one."""
        inner = sorted({path[:-1] for path in self._choices.at_level(self._level + 1)} & self._tokens.keys())
        if not inner:
            return False
        logits = state.expand([self._tokens[path] for path in inner], [self._rows[path[:-1]] for path in inner])
        for path in inner:
            self._rows[path] = len(self._rows) - 1
        self._fill(inner, logits)
        return True

    def tree(self) -> DraftTree:
        paths = list(self._tokens)
        number = {path: node for node, path in enumerate(paths)} | {(): ROOT}
        return DraftTree(tuple(self._tokens.values()), tuple(number[path[:-1]] for path in paths))

    def _fill(self, parents: Sequence[tuple[int, ...]], logits: Tensor) -> None:
        """Choose the tokens of the next level; a rank beyond what a parent can be followed by makes no node."""
        self._level += 1
        wanted = self._choices.at_level(self._level)
        ranks = min(1 + max((path[-1] for path in wanted), default=0), logits.shape[1])
        best = logits.topk(ranks)
        tokens, values = best.indices.tolist(), best.values.tolist()
        row_of = {path: row for row, path in enumerate(parents)}
        for path in wanted:
            row, rank = row_of.get(path[:-1]), path[-1]
            if row is not None and rank < ranks and values[row][rank] > IMPOSSIBLE:
                self._tokens[path] = tokens[row][rank]
