"""Pre-drafting: while the target judges a tree, draft below its likeliest outcomes. Knows no family.

An outcome is the last accepted node and the bonus token after it. Its probability, as the drafter sees it, is
that of the node's whole path times that of the bonus, which is none of the node's children, or the path would go on:

        root            outcome (1, x): p(1) p(x | 1)
       /    \\
      0      1          if it comes true, the next draft has x for its root; all these drafts grow together,
     /        \\         level by level, as one tree below the one being judged
    2          x - ...

A drafter of blocks runs one below every bonus, all in one pass (families/block_state.py).

Several outcomes side by side: Saguaro (arXiv 2603.03251); one bonus guess: SpecEdge (arXiv 2505.17052).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_drafters.contracts.drafter import UNLIMITED, DraftState
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.trees.grow import IMPOSSIBLE, Level, ScoredTree, TreeBuilder, start_tree
from outrider_proto.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class TreeOutcome:
    """The last accepted node (ROOT: none) and the bonus after it."""

    node: int
    bonus: int


NO_OUTCOME = TreeOutcome(ROOT, -1)  # no tree has it: resolving to it stops a pre-draft that is no longer needed


@dataclass(frozen=True, slots=True)
class PreDraft:
    """The draft for one outcome; `score` is the outcome's log-probability."""

    outcome: TreeOutcome
    score: float
    drafted: ScoredTree


def can_predraft(state: DraftState) -> bool:
    """True if the state can draft below nodes whose features it has not seen."""
    return state.max_levels == UNLIMITED


@torch.inference_mode()
def predraft(
    state: DraftState,
    tree: DraftTree,
    plan: TreePlan,
    count: int,
    ends: Sequence[int],
    truth: Callable[[], TreeOutcome | None] = lambda: None,
) -> tuple[PreDraft, ...]:
    """Draft for the `count` likeliest outcomes of `tree`, which lies below the state's root; the likeliest first.

    Outcomes that end the text (their bonus is one of `ends`) get no draft. `truth` is called between levels: once the
    outcome is known, only its draft grows on, if it is among them. Empty for a drafter that cannot pre-draft.
    """
    if not can_predraft(state) or truth() is not None:
        return ()
    logits = state.tree_logits(tree)
    # The tree's pass takes a while: the verdict may have come meanwhile.
    if truth() is not None:
        return ()
    found = likeliest_outcomes(tree, logits, count, ends)
    if not found:
        return ()
    roots = state.expand([outcome.bonus for outcome, _ in found], [outcome.node for outcome, _ in found])
    branches = [
        _Branch(outcome, score, start_tree(row, plan), [len(tree) + number])
        for number, ((outcome, score), row) in enumerate(zip(found, roots, strict=True))
    ]
    num_rows = len(tree) + len(branches)
    for _ in range(1, plan.levels):
        if (known := truth()) is not None:
            branches = [branch for branch in branches if branch.outcome == known]
        num_rows, grown = _grow(state, branches, num_rows)
        if not grown:
            break
    return tuple(PreDraft(branch.outcome, branch.score, branch.builder.drafted()) for branch in branches)


def likeliest_outcomes(
    tree: DraftTree, logits: Tensor, count: int, ends: Sequence[int]
) -> list[tuple[TreeOutcome, float]]:
    """Return the `count` likeliest outcomes, best first, from logits [1 + n, V] after the root and every node."""
    log_probabilities = logits.float().log_softmax(-1)
    drafted = [1 + parent for parent in tree.parents], list(tree.tokens)
    paths = [0.0]  # log-probability of the path to the root and every node
    for parent, gain in zip(tree.parents, log_probabilities[drafted].tolist(), strict=True):
        paths.append(paths[1 + parent] + gain)
    # A bonus is never one of the node's drafted children: with that token the path would go on.
    log_probabilities[drafted] = IMPOSSIBLE
    log_probabilities[:, list(ends)] = IMPOSSIBLE
    # `count` per row is enough: the best of all rows cannot include more from one.
    gains, tokens = log_probabilities.topk(min(count, logits.shape[1]))
    scored = [
        (path + gain, TreeOutcome(row - 1, token))
        for row, path in enumerate(paths)
        for gain, token in zip(gains[row].tolist(), tokens[row].tolist(), strict=True)
        if path + gain > IMPOSSIBLE
    ]
    scored.sort(key=lambda pair: -pair[0])
    return [(outcome, score) for score, outcome in scored[:count]]


@dataclass(frozen=True, slots=True)
class _Branch:
    """The draft below one outcome: a tree of its own, whose rows lie among all draft rows of the state."""

    outcome: TreeOutcome
    score: float
    builder: TreeBuilder
    rows: list[int]  # draft rows of the state: the bonus's, then those of the tree's nodes

    def level(self) -> Level | None:
        """Return the next level, its parents as draft rows of the state."""
        level = self.builder.level()
        return None if level is None else Level(level.tokens, [self.rows[1 + parent] for parent in level.parents])

    def take(self, logits: Tensor, first_row: int) -> None:
        self.builder.take(logits)
        self.rows.extend(range(first_row, first_row + len(logits)))


def _grow(state: DraftState, branches: Sequence[_Branch], num_rows: int) -> tuple[int, bool]:
    """Grow all branches by one level in one pass. Returns the new number of draft rows, and False if nothing grew."""
    levels = [(branch, level) for branch in branches if (level := branch.level()) is not None]
    if not levels:
        return num_rows, False
    logits = state.expand(
        [token for _, level in levels for token in level.tokens],
        [parent for _, level in levels for parent in level.parents],
    )
    first = 0
    for branch, level in levels:
        stop = first + len(level.tokens)
        branch.take(logits[first:stop], num_rows + first)
        first = stop
    return num_rows + first, True
