"""The acceptance rule: walk the tree along the tokens the target has chosen. Pure; knows no model and no tensors.

At every node the target's token is chosen without a look at the tree (choice.py); the walk goes to the child that
carries it, and where there is none the chosen token is the bonus. Greedy: the argmax path. Sampling: each step takes
child x with probability p(x), or leaves the tree with a token of law p restricted to the tokens not drafted. That is
exactly the sibling-by-sibling rule for deterministic proposals (accept x with p(x), else renormalise without it), so
the output has the target's distribution whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from outrider_proto.frames import Finish
from outrider_proto.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Walk:
    """Accepted nodes, the token after them (None when an end-of-text node ends the path), and whether that is all."""

    path: tuple[int, ...]
    bonus: int | None
    finish: Finish


def walk(tree: DraftTree, choose: Callable[[int], int], eos: Collection[int], max_depth: int) -> Walk:
    """choose(node) is the target's token after that node, or after the root; asked once for each node on the way.

    `max_depth` is how many tokens besides the bonus still fit into the context.
    """
    children = {edge: node for node, edge in enumerate(zip(tree.parents, tree.tokens, strict=True))}
    path: list[int] = []
    node = ROOT
    token = choose(node)
    while len(path) < max_depth and (child := children.get((node, token))) is not None:
        node = child
        path.append(child)
        if token in eos:
            return Walk(tuple(path), None, Finish.EOS)
        token = choose(node)
    if token in eos:
        return Walk(tuple(path), token, Finish.EOS)
    return Walk(tuple(path), token, Finish.CONTEXT_FULL if len(path) == max_depth else Finish.NOT_YET)
