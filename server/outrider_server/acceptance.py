"""The acceptance rule: walk the tree along the tokens the target has chosen. Pure; knows no model and no tensors.

The target's token is chosen at every node first (choice.py), then the walk goes to the child that carries it; where
there is none the chosen token is the bonus. Greedy: the argmax path. Sampling: each step takes child x with
probability p(x) and leaves the tree with a token of law p restricted to the tokens not drafted, which is exactly
the sibling-by-sibling rule for deterministic proposals (accept x with p(x), else renormalise without it), so the
output has the target's distribution whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from outrider_proto.frames import Finish
from outrider_proto.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Walk:
    """Accepted nodes, the token after them (None when an end-of-text node ends the path), and whether that is all."""

    path: tuple[int, ...]
    bonus: int | None
    finish: Finish


def walk(tree: DraftTree, chosen: Sequence[int], eos: Collection[int], max_depth: int) -> Walk:
    """chosen[0] is the target's token after the root, chosen[1 + i] the one after node i.

    `max_depth` is how many tokens besides the bonus still fit into the context.
    """
    children = {edge: node for node, edge in enumerate(zip(tree.parents, tree.tokens, strict=True))}
    path: list[int] = []
    node = ROOT
    while len(path) < max_depth:
        token = chosen[1 + node]
        child = children.get((node, token))
        if child is None:
            break
        node = child
        path.append(child)
        if token in eos:
            return Walk(tuple(path), None, Finish.EOS)
    bonus = chosen[1 + node]
    if bonus in eos:
        return Walk(tuple(path), bonus, Finish.EOS)
    return Walk(tuple(path), bonus, Finish.CONTEXT_FULL if len(path) == max_depth else Finish.NOT_YET)
