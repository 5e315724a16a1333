"""Several heads that draft for one text, kept in step by its tokens and features; each cycle sends one head's tree.

    append, features, rollback ----> every head
    draft: root of the current head -- sure? --> its tree alone
                                    -- else ---> a tree from every head, together level by level; the best is sent

A single head is the same without a choice. Knows no family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_drafters.checkpoints.draft_vocabulary import DraftLogits
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tap import NO_FEATURES
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.routing.batched_heads import BatchedHeads, batch_heads
from outrider_drafters.routing.confidence import Confidence, confidence_of
from outrider_drafters.routing.head_states import HeadStates, SeparateStates
from outrider_drafters.routing.rules import Routing
from outrider_drafters.trees.grow import Level, ScoredTree, TreeBuilder, start_tree
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo
from outrider_proto.tree import DraftTree


@dataclass(frozen=True, slots=True)
class RoutedDraft:
    """One cycle's draft, the number of its head, and what it cost.

    `num_drafts`: heads that drafted. `num_passes`: forward passes; one pass for several heads counts once. `skipped`:
    the gate let the current head draft alone.
    """

    drafted: ScoredTree
    head: int
    confidence: Confidence
    num_drafts: int
    num_passes: int
    skipped: bool


class RoutedDrafter:
    """Drafters for one target that read the same features, or none. Raises UsageError otherwise."""

    family = "heads"

    def __init__(
        self, heads: Sequence[Drafter], names: Sequence[str] | None = None, routing: Routing | None = None
    ) -> None:
        self.heads = tuple(heads)
        self.names = tuple(head.family for head in heads) if names is None else tuple(names)
        self.routing = Routing() if routing is None else routing
        self.tap = _shared_tap(self.heads, self.names)
        self.vocab_size = self.heads[0].vocab_size
        self.stale_tolerant = all(head.stale_tolerant for head in self.heads)
        self.tree_in_one_pass = all(head.tree_in_one_pass for head in self.heads)
        self.levels_per_pass = min(head.levels_per_pass for head in self.heads)
        self.plan = self.heads[0].plan if all(head.plan == self.heads[0].plan for head in heads) else None
        one_at_a_time = len(self.heads) == 1 or self.routing.route == "keywords" or not self.routing.batched
        self._batch: BatchedHeads | None = None if one_at_a_time else batch_heads(self.heads)

    @classmethod
    def of(cls, drafter: Drafter) -> RoutedDrafter:
        """Wrap a single drafter; a RoutedDrafter is returned as it is."""
        return drafter if isinstance(drafter, RoutedDrafter) else cls((drafter,))

    @property
    def batched(self) -> bool:
        """True if the heads draft in one batch."""
        return self._batch is not None

    def new_states(self) -> HeadStates:
        return SeparateStates(self.heads) if self._batch is None else self._batch.new_state()

    def new_state(self) -> RoutedState:
        return RoutedState(self)


class RoutedState:
    """The draft state of several heads. As a DraftState it is that of the head in use, `current`."""

    def __init__(self, heads: RoutedDrafter) -> None:
        self._heads = heads
        self._states = heads.new_states()
        self.current = 0

    @property
    def num_tokens(self) -> int:
        return self._states.num_tokens

    @property
    def num_features(self) -> int:
        return self._states.num_features

    @property
    def max_levels(self) -> int:
        return self._states.max_levels(self.current)

    def append(self, tokens: Sequence[int]) -> None:
        self._states.append(tokens)

    def add_features(self, first: int, rows: Tensor) -> None:
        self._states.add_features(first, rows)

    def rollback(self, num_tokens: int) -> None:
        self._states.rollback(num_tokens)

    def root_logits(self) -> Tensor:
        self._states.start()
        return self._states.root(self.current)

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        return self._states.expand({self.current: Level(list(tokens), list(parents))})[self.current]

    def tree_logits(self, tree: DraftTree) -> Tensor:
        self._states.start()
        return self._states.tree(self.current, tree)

    def switch_to_able_head(self) -> bool:
        """Switch to a head that can draft, unless the current one can. False if none can."""
        able = self._able()
        if able and self.current not in able:
            self.current = able[0]
        return bool(able)

    @torch.inference_mode()
    def draft(
        self, plan: TreePlan, only: int | None = None, cancelled: Callable[[], bool] = lambda: False
    ) -> RoutedDraft:
        """Draft the best head's tree, or that of `only` if it can draft, and make that head the current one."""
        if not self.switch_to_able_head():
            return RoutedDraft(ScoredTree(), self.current, confidence_of(ScoredTree()), 0, 0, skipped=False)
        routing, able = self._heads.routing, self._able()
        first = self.current if only is None or only not in able else only
        others = [head for head in able if head != first] if only is None else []
        passes_before = self._states.num_passes
        self._states.start()
        skipped = bool(others) and not routing.needs_comparison(_first_probability(self._states.root(first)))
        heads = [first] if skipped else [first, *others]
        drafts = self._grow(heads, plan, cancelled)
        confidences = {head: confidence_of(drafted) for head, drafted in drafts.items()}
        self.current = routing.choose(confidences, first)
        return RoutedDraft(
            drafts[self.current],
            self.current,
            confidences[self.current],
            len(drafts),
            self._states.num_passes - passes_before,
            skipped,
        )

    def _grow(self, heads: Sequence[int], plan: TreePlan, cancelled: Callable[[], bool]) -> dict[int, ScoredTree]:
        """Grow trees of some heads side by side, level by level."""
        measure = len(self._heads.heads) > 1
        builders = {head: start_tree(self._states.root(head), plan, entropies=measure) for head in heads}
        for depth in range(1, plan.levels):
            levels = {head: level for head in heads if (level := self._level(head, builders[head], depth)) is not None}
            # Before the pass, not after it: what is grown so far is complete between levels.
            if not levels or cancelled():
                break
            for head, logits in self._states.expand(levels).items():
                builders[head].take(logits)
        return {head: builder.drafted() for head, builder in builders.items()}

    def _level(self, head: int, builder: TreeBuilder, depth: int) -> Level | None:
        return builder.level() if depth < self._states.max_levels(head) else None

    def _able(self) -> list[int]:
        return [head for head in range(len(self._heads.heads)) if self._states.max_levels(head)]


def _first_probability(logits: Tensor) -> float:
    """Return the probability of the likeliest token, from logits [V]."""
    if isinstance(logits, DraftLogits) and logits.normalized:
        return float(logits.drafted.max().exp())
    return float((logits.max() - logits.float().logsumexp(-1)).exp())


def _shared_tap(heads: Sequence[Drafter], names: Sequence[str]) -> TapInfo:
    """Return the tap of the heads that read features. Raises UsageError if they differ: a session has one tap."""
    if not heads:
        raise UsageError("heads: need at least one")
    eaters = [(name, head.tap) for name, head in zip(names, heads, strict=True) if head.tap.fingerprint]
    for name, tap in eaters[1:]:
        if tap != eaters[0][1]:
            raise UsageError(
                f"heads {eaters[0][0]} and {name} read different features ({eaters[0][1].fingerprint}, "
                f"{tap.fingerprint}): a session gets one kind, so heads must share it or read none"
            )
    return eaters[0][1] if eaters else NO_FEATURES
