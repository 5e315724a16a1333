"""The acceptance rules: which drafted tokens are accepted, and which token follows. Pure: no model, no tensors.

Exact (`verify_path`). At every node the target's token is chosen without looking at the tree (sampler.py). The path
goes on to the child that carries it; where there is none, the chosen token is the bonus. Greedy: the argmax path.
Sampling: each step takes child x with probability p(x), or leaves the tree with a token of law p restricted to the
tokens that were not drafted. That is exactly the sibling-by-sibling rule for deterministic proposals (accept x with
p(x), else renormalize without it), so the output has the target's distribution whatever was drafted.

Typical (`verify_typical`; Medusa, arXiv 2401.10774, section 2.3; FasterDecoding/Medusa, evaluate_posterior). Lossy: the
output depends on what was drafted. Token x below a node whose successor has law p and entropy H is typical when

    p(x) > min(epsilon, alpha * exp(-H))        H = -sum p ln(p + 1e-5)

that is, when it is likely, or the target is unsure. The longest path of typical tokens is accepted, of equally long
ones the likeliest; the bonus is the argmax. Only drafted nodes count, unlike in the published code, which pads its
paths with token 0 and may accept that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from outrider_proto.frames import Finish
from outrider_proto.tree import ROOT, DraftTree

NOT_TYPICAL = -math.inf


@dataclass(frozen=True, slots=True)
class AcceptedPath:
    """The accepted nodes, the token after them, and whether the text ends there.

    `bonus` is None when the path ends in an end-of-text node.
    """

    path: tuple[int, ...]
    bonus: int | None
    finish: Finish


def verify_path(tree: DraftTree, choose: Callable[[int], int], eos: Collection[int], max_depth: int) -> AcceptedPath:
    """Follow the target's tokens through the tree.

    `choose(node)` is the target's token after that node or the root, asked once for each node of the path. `max_depth`
    is how many tokens besides the bonus still fit into the context.
    """
    children = {edge: node for node, edge in enumerate(zip(tree.parents, tree.tokens, strict=True))}
    path: list[int] = []
    node = ROOT
    token = choose(node)
    while len(path) < max_depth and (child := children.get((node, token))) is not None:
        node = child
        path.append(child)
        if token in eos:
            return AcceptedPath(tuple(path), None, Finish.EOS)
        token = choose(node)
    return _with_bonus(tuple(path), token, eos, max_depth)


def verify_typical(
    tree: DraftTree, log_probs: Sequence[float], choose: Callable[[int], int], eos: Collection[int], max_depth: int
) -> AcceptedPath:
    """Accept the longest path of typical tokens; `log_probs[i]` is ln p of node i's token, or NOT_TYPICAL.

    Nodes below an end of text or below `max_depth` are never accepted. `choose` is asked for the bonus only.
    """
    path = _best_path(tree, log_probs, eos, max_depth)
    if path and tree.tokens[path[-1]] in eos:
        return AcceptedPath(path, None, Finish.EOS)
    return _with_bonus(path, choose(path[-1] if path else ROOT), eos, max_depth)


def _best_path(tree: DraftTree, log_probs: Sequence[float], eos: Collection[int], max_depth: int) -> tuple[int, ...]:
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    scores = {ROOT: 0.0}
    for node, parent in enumerate(tree.parents):
        if parent not in paths or log_probs[node] == NOT_TYPICAL or len(paths[parent]) == max_depth:
            continue
        if parent == ROOT or tree.tokens[parent] not in eos:
            paths[node] = (*paths[parent], node)
            scores[node] = scores[parent] + log_probs[node]
    # The published code lists leaves from the last one on and takes the first of otherwise equal paths: so does this.
    newest = _highest_below(tree)
    return paths[max(paths, key=lambda node: (len(paths[node]), scores[node], newest[node]))]


def _highest_below(tree: DraftTree) -> dict[int, int]:
    """Return the highest node number in every node's branch."""
    newest = {ROOT: ROOT} | {node: node for node in range(len(tree))}
    for node in reversed(range(len(tree))):
        parent = tree.parents[node]
        newest[parent] = max(newest[parent], newest[node])
    return newest


def _with_bonus(path: tuple[int, ...], token: int, eos: Collection[int], max_depth: int) -> AcceptedPath:
    if token in eos:
        return AcceptedPath(path, token, Finish.EOS)
    return AcceptedPath(path, token, Finish.CONTEXT_FULL if len(path) == max_depth else Finish.NOT_YET)
