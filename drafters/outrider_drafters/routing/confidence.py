"""Measures of a head's confidence in its draft. Knows no head.

c_i = exp(s_i)                 s_i: log-probability of node i's whole path, as the head sees it
mean = (c_1 + ... + c_N) / N   the EAGLE and HASS routers' measure, over all N nodes of the tree
expected = c_1 + ... + c_N     the tokens the head expects to be accepted, were it as often right as it believes
entropy                        mean over the best path of the entropies [nats] its tokens were drawn from

The best path follows the likeliest child from the root to a leaf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider_proto.tree import ROOT

# Only for types: the client's events and statistics read this module, and must not import torch.
if TYPE_CHECKING:
    from outrider_drafters.trees.grow import ScoredTree


@dataclass(frozen=True, slots=True)
class Confidence:
    """The module's measures; for an empty tree 0 and infinite entropy. `entropy` is None if it was not measured."""

    mean: float
    expected: float
    entropy: float | None = None


def confidence_of(drafted: ScoredTree) -> Confidence:
    if not drafted.scores:
        return Confidence(0.0, 0.0, math.inf)
    probabilities = probabilities_of(drafted)
    expected = math.fsum(probabilities)
    entropies = drafted.entropies
    path = best_path(drafted)
    entropy = None if entropies is None else math.fsum(entropies[node] for node in path) / len(path)
    return Confidence(expected / len(probabilities), expected, entropy)


def probabilities_of(drafted: ScoredTree) -> tuple[float, ...]:
    """Return c of every node."""
    return tuple(math.exp(score) for score in drafted.scores)


def best_path(drafted: ScoredTree) -> Sequence[int]:
    """Return the nodes from a child of the root to a leaf, always the likeliest child; of equals the first."""
    best: dict[int, int] = {}
    for node, parent in enumerate(drafted.tree.parents):
        if parent not in best or drafted.scores[node] > drafted.scores[best[parent]]:
            best[parent] = node
    path: list[int] = []
    while (child := best.get(path[-1] if path else ROOT)) is not None:
        path.append(child)
    return path
