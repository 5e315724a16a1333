"""Grow draft trees from any draft state. Knows no family.

Dynamic (EAGLE-2, arXiv 2406.16858): each level expands `breadth` nodes, the likeliest of those the level before gave, a
node's likelihood being the product along its path. Each expanded node offers its `breadth` likeliest successors. Of all
nodes offered, the `budget` likeliest make the tree, numbered in the order they were offered: a parent comes before its
children and is at least as likely, so it is always among them.

    root -> a b c (offered, all expanded) -> 9 offered, the 3 best of these expanded -> 9 offered ...

Static (Medusa, arXiv 2401.10774): the ranks drafted below each node are fixed beforehand (tree_choices.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, assert_never, runtime_checkable

import torch
from torch import Tensor

from outrider_drafters.checkpoints.draft_vocabulary import DraftLogits
from outrider_drafters.contracts.drafter import DraftState
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_proto.tree import ROOT, DraftTree

IMPOSSIBLE = -math.inf


@dataclass(frozen=True, slots=True)
class ScoredTree:
    """A draft tree with a score per node: the log-probability of the node's whole path.

    `entropies`, if measured, holds for each node the entropy in nats of the drafter's distribution at its parent.
    """

    tree: DraftTree = field(default_factory=DraftTree)
    scores: tuple[float, ...] = ()
    entropies: tuple[float, ...] | None = None

    def part(self, nodes: Sequence[int]) -> ScoredTree:
        """Return the tree of these nodes alone, in this order; the parent of each must be among them."""
        if len(nodes) == len(self.tree):
            return self
        place = {ROOT: ROOT} | {node: number for number, node in enumerate(nodes)}
        tokens = tuple(self.tree.tokens[node] for node in nodes)
        parents = tuple(place[self.tree.parents[node]] for node in nodes)
        entropies = None if self.entropies is None else tuple(self.entropies[node] for node in nodes)
        return ScoredTree(DraftTree(tokens, parents), tuple(self.scores[node] for node in nodes), entropies)


@dataclass(frozen=True, slots=True)
class Level:
    """Nodes to expand next, as DraftState.expand takes them."""

    tokens: Sequence[int]
    parents: Sequence[int]


@runtime_checkable
class JointState(Protocol):
    """A draft state that runs a level of several texts' drafts in one pass."""

    @staticmethod
    def expand_together(levels: Sequence[tuple[Any, Level]]) -> list[Tensor]:  # Any: a state of this very type
        """Return what `expand` of each state would; all states are of one drafter."""


class TreeBuilder(Protocol):
    """A tree being grown. It requests levels and the caller runs the state, so that several trees can share a batch."""

    def level(self) -> Level | None:
        """Return the nodes to expand for one more level; None if there are none."""

    def take(self, logits: Tensor) -> None:  # [n, V]
        """Take the logits of the level requested last."""

    def drafted(self) -> ScoredTree: ...


def grow_tree(state: DraftState, plan: TreePlan, cancelled: Callable[[], bool] = lambda: False) -> DraftTree:
    """Draft a tree below the state's root, as deep as the plan and the state allow.

    `cancelled` is called before each further level; if true, the tree is returned as it is.
    """
    return grow(state, plan, cancelled).tree


def grow(state: DraftState, plan: TreePlan, cancelled: Callable[[], bool] = lambda: False) -> ScoredTree:
    """Grow a tree as grow_tree does, and return it with each node's score."""
    growth = TreeGrowth(state, plan)
    while not cancelled() and growth.step():
        pass
    return growth.drafted()


class TreeGrowth:
    """A tree that grows a level at a time, so that several can take turns. Its first level is there at once.

    `num_expanded`: nodes that the state has run, with the root.
    """

    @torch.inference_mode()
    def __init__(self, state: DraftState, plan: TreePlan) -> None:
        self._state = state
        self._levels_left = min(plan.levels, state.max_levels) - 1
        self._builder: TreeBuilder | None = None
        self._unread: tuple[_DynamicTree, Tensor] | None = None  # logits that the tree has not taken yet
        self.num_expanded = 0
        if self._levels_left >= 0:
            self.num_expanded = 1
            if isinstance(plan, TreeShape):
                self._builder = tree = _DynamicTree(plan, entropies=False)
                self._unread = tree, _one_row(state.root_logits())
            else:
                self._builder = start_tree(state.root_logits(), plan)

    def step(self) -> bool:
        """Grow by one level; return False where the tree was whole."""
        return self.step_together((self,)) == [True]

    @staticmethod
    @torch.inference_mode()
    def step_together(growths: Sequence[TreeGrowth]) -> list[bool]:
        """Grow each by one level, in one pass where their states can; return False for each that was whole.

        All states are of one drafter.
        """
        TreeGrowth._read_together(growths)
        asked = [(growth, growth._next_level()) for growth in growths]
        levels = [(growth._state, level) for growth, level in asked if level is not None]
        if levels and isinstance(levels[0][0], JointState):
            logits = levels[0][0].expand_together(levels)
        else:
            logits = [state.expand(level.tokens, level.parents) for state, level in levels]
        taken = iter(logits)
        for growth, level in asked:
            if level is not None:
                growth._take(level, next(taken))
        TreeGrowth._read_together(growths)
        return [level is not None for _, level in asked]

    @property
    def can_step_together(self) -> bool:
        """True if a level of it can run in one pass with others'."""
        return isinstance(self._state, JointState)

    @staticmethod
    def _read_together(growths: Sequence[TreeGrowth]) -> None:
        """Have all trees take what they have not taken yet; the host waits once for all of them."""
        unread = [growth._unread for growth in growths if growth._unread is not None]
        for growth in growths:
            growth._unread = None
        if len(unread) == 1:
            ((tree, logits),) = unread
            tree.take(logits)
        elif unread:
            offers = [tree.offers(logits) for tree, logits in unread]
            host = iter(torch.cat([each.flatten() for each in offers]).tolist())
            for (tree, _), each in zip(unread, offers, strict=True):
                tree.take_offers([list(islice(host, each.shape[1])) for _ in range(each.shape[0])])

    def _next_level(self) -> Level | None:
        return self._builder.level() if self._builder is not None and self._levels_left > 0 else None

    def _take(self, level: Level, logits: Tensor) -> None:
        assert self._builder is not None
        if isinstance(self._builder, _DynamicTree):
            self._unread = self._builder, logits
        else:
            self._builder.take(logits)
        self._levels_left -= 1
        self.num_expanded += len(level.tokens)

    def drafted(self) -> ScoredTree:
        """Return the tree as it is."""
        self._read_together((self,))
        return ScoredTree() if self._builder is None else self._builder.drafted()


def start_tree(root_logits: Tensor, plan: TreePlan, entropies: bool = False) -> TreeBuilder:
    """Start a tree from root_logits [V]. Measuring `entropies` costs one more pass over each row of logits."""
    match plan:
        case TreeShape():
            tree = _DynamicTree(plan, entropies=entropies)
            tree.take(_one_row(root_logits))
            return tree
        case TreeChoices():
            return _ChoiceTree(root_logits, plan, entropies)
        case _:
            assert_never(plan)


class _DynamicTree:
    """A dynamic tree: all nodes offered so far. The first logits that it takes are the root's."""

    # Plain Python numbers: on tensors of sixteen values, the overhead of each operation exceeds sorting a list.

    def __init__(self, shape: TreeShape, *, entropies: bool) -> None:
        self._shape = shape
        self._entropies: list[float] | None = [] if entropies else None
        self._least = math.log(shape.min_probability) if shape.min_probability else IMPOSSIBLE
        self._certain = math.log(shape.certainty)
        self._tokens: list[int] = []
        self._scores: list[float] = []  # log-probability of the whole path
        self._worth: list[float] = []  # the same with the shape's certainty, by which nodes are chosen
        self._parents: list[int] = []  # numbers among the offers
        self._rows: dict[int, int] = {}  # draft rows of the root, which is -1, and of the offers that were expanded
        self._frontier = [ROOT]  # offers to expand next
        self._num_levels = 0

    def level(self) -> Level | None:
        nodes, costs_pass = self._frontier, self._num_levels % self._shape.levels_per_pass == 0
        if costs_pass and sum(math.exp(self._worth[node]) for node in nodes) < self._shape.min_level_probability:
            return None
        tokens = [self._tokens[node] for node in nodes]
        return Level(tokens, [self._rows[self._parents[node]] for node in nodes]) if nodes else None

    def take(self, logits: Tensor) -> None:
        self.take_offers(self.offers(logits).tolist())

    def drafted(self) -> ScoredTree:
        """Return the best of all nodes offered."""
        # Sorted by number again, which is the order of offers: every parent then comes before its children.
        kept = sorted(self._best(range(len(self._tokens)), self._shape.budget))
        number = {offer: node for node, offer in enumerate(kept)} | {ROOT: ROOT}
        tree = DraftTree(
            tuple(self._tokens[offer] for offer in kept), tuple(number[self._parents[offer]] for offer in kept)
        )
        return ScoredTree(tree, tuple(self._scores[offer] for offer in kept), _picked(self._entropies, kept))

    def offers(self, logits: Tensor) -> Tensor:
        """Return what the level's logits [nodes, V] offer: [nodes, 2k] float32, or 2k + 1.

        For each node its k likeliest successors, then their log-probabilities, then the entropy if it is measured.
        """
        logits, token_ids, is_normalized = _columns(logits)
        # A block's level has one row for all its nodes, expanded without a copy: its work is done once.
        num_nodes, is_shared = len(logits), len(logits) > 1 and logits.stride(0) == 0
        logits = logits[:1] if is_shared else logits
        # topk on the logits as they are: in the float32 log-softmax neighbors can round to equals and change order.
        columns = logits.topk(min(self._shape.breadth, logits.shape[1])).indices
        log_probabilities = logits.float() if is_normalized else logits.float().log_softmax(-1)
        gains = log_probabilities.gather(1, columns)
        tokens = columns if token_ids is None else token_ids[columns]
        unsure = [] if self._entropies is None else [_entropies(log_probabilities)[:, None]]
        # In one tensor, which is read at once: token ids have 24 bits, as on the wire, and float32 holds those.
        return torch.cat([tokens, gains, *unsure], dim=-1).expand(num_nodes, -1)

    def take_offers(self, offers: Sequence[Sequence[float]]) -> None:
        """Take what offers() has made of the level requested last; the best become the new frontier."""
        for node in self._frontier:
            self._rows[node] = len(self._rows) - 1
        first = len(self._tokens)
        self._num_levels += 1
        for node, row in zip(self._frontier, offers, strict=True):
            score, worth = (0.0, 0.0) if node == ROOT else (self._scores[node], self._worth[node])
            num_offers = len(row) // 2
            for token, gain in zip(row[:num_offers], row[num_offers : 2 * num_offers], strict=True):
                path_worth = worth + (gain or self._certain)
                if gain > IMPOSSIBLE and path_worth >= self._least:
                    self._tokens.append(int(token))
                    self._scores.append(score + gain)
                    self._worth.append(path_worth)
                    self._parents.append(node)
                    if self._entropies is not None:
                        self._entropies.append(row[-1])
        self._frontier = self._best(range(first, len(self._tokens)), self._shape.breadth)
        if self._shape.breadth >= self._shape.budget:
            # What lies behind `budget` better nodes is not part of the tree, nor is anything below it.
            kept = set(self._best(range(len(self._tokens)), self._shape.budget))
            self._frontier = [node for node in self._frontier if node in kept]

    def _best(self, offers: Sequence[int], count: int) -> list[int]:
        """Return the likeliest offers, best first; of equals the earlier one."""
        # Must be a stable sort: a child of probability 1 scores exactly as its parent, and must not displace it.
        return sorted(offers, key=lambda offer: -self._worth[offer])[:count]


class _ChoiceTree:
    """A static tree: nodes by their paths of ranks; the inner nodes of a level are expanded together, in order."""

    def __init__(self, root_logits: Tensor, choices: TreeChoices, entropies: bool) -> None:
        self._choices = choices
        self._level = 0
        self._tokens: dict[tuple[int, ...], int] = {}
        self._scores: dict[tuple[int, ...], float] = {(): 0.0}
        self._entropies: list[float] | None = [] if entropies else None
        self._rows: dict[tuple[int, ...], int] = {(): ROOT}
        self._inner: list[tuple[int, ...]] = []  # nodes asked for
        self._fill([()], _one_row(root_logits))

    def level(self) -> Level | None:
        self._inner = sorted({path[:-1] for path in self._choices.at_level(self._level + 1)} & self._tokens.keys())
        tokens = [self._tokens[path] for path in self._inner]
        return Level(tokens, [self._rows[path[:-1]] for path in self._inner]) if self._inner else None

    def take(self, logits: Tensor) -> None:
        for path in self._inner:
            self._rows[path] = len(self._rows) - 1
        self._fill(self._inner, logits)

    def drafted(self) -> ScoredTree:
        paths = list(self._tokens)
        number = {path: node for node, path in enumerate(paths)} | {(): ROOT}
        tree = DraftTree(tuple(self._tokens.values()), tuple(number[path[:-1]] for path in paths))
        return ScoredTree(
            tree, tuple(self._scores[path] for path in paths), _picked(self._entropies, range(len(paths)))
        )

    def _fill(self, parents: Sequence[tuple[int, ...]], logits: Tensor) -> None:
        """Choose the tokens of the next level; a rank beyond a parent's possible successors makes no node."""
        self._level += 1
        wanted = self._choices.at_level(self._level)
        logits, token_ids, is_normalized = _columns(logits)
        ranks = min(1 + max((path[-1] for path in wanted), default=0), logits.shape[1])
        best = logits.topk(ranks)
        norms = [0.0] * len(parents) if is_normalized else logits.float().logsumexp(-1).tolist()
        unsure = (
            [0.0] * len(parents) if self._entropies is None else _entropies(logits.float().log_softmax(-1)).tolist()
        )
        tokens = (best.indices if token_ids is None else token_ids[best.indices]).tolist()
        values = best.values.tolist()
        row_of = {path: row for row, path in enumerate(parents)}
        for path in wanted:
            row, rank = row_of.get(path[:-1]), path[-1]
            if row is not None and rank < ranks and values[row][rank] > IMPOSSIBLE:
                self._tokens[path] = tokens[row][rank]
                self._scores[path] = self._scores[path[:-1]] + values[row][rank] - norms[row]
                if self._entropies is not None:
                    self._entropies.append(unsure[row])


def _one_row(logits: Tensor) -> Tensor:
    return logits.as_rows if isinstance(logits, DraftLogits) else logits.unsqueeze(0)


def _columns(logits: Tensor) -> tuple[Tensor, Tensor | None, bool]:
    """Return the columns that can be drafted, their tokens (None: column i is token i), and if they are normalized."""
    # To choose among 8,192 columns takes a fifth of the time of 49,152, most of them -inf.
    if isinstance(logits, DraftLogits):
        return logits.drafted, logits.tokens, logits.normalized
    return logits, None, False


def _entropies(log_probabilities: Tensor) -> Tensor:
    """Compute the entropy in nats of every row of log_probabilities [n, V]."""
    # entr(p), not -p * log p: a token that cannot be drafted has log-probability -inf and must add 0, not NaN.
    entropies: Tensor = torch.special.entr(log_probabilities.exp()).sum(-1)
    return entropies


def _picked(values: Sequence[float] | None, numbers: Sequence[int]) -> tuple[float, ...] | None:
    return None if values is None else tuple(values[number] for number in numbers)
