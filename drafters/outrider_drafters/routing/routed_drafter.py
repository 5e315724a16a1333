"""Several heads that draft for one text, kept in step by its tokens and features; each cycle sends one head's tree.

    append, features, rollback ----> every head
    draft: root of the current head -- sure? --> its tree alone
                                    -- else ---> a tree from every head, together level by level; the best is sent

A single head is the same without a choice. Knows no family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_drafters.checkpoints.draft_vocabulary import DraftLogits
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tap import NO_FEATURES
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.feature_drafter import FeatureDrafter, FeatureState
from outrider_drafters.routing.confidence import Confidence, confidence_of
from outrider_drafters.routing.rules import Routing
from outrider_drafters.trees.grow import Level, ScoredTree, start_tree
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo
from outrider_proto.tree import DraftTree


@dataclass(frozen=True, slots=True)
class RoutedDraft:
    """One cycle's draft, the number of its head, and what it cost.

    `num_drafts`: heads that drafted. `num_passes`: forward passes, those that several heads share counted once.
    `skipped`: the gate let the current head draft alone.
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
    hint = ""  # each of them has its own

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
        # Heads with one head for logits, the target's lm_head, have it read once for all of them.
        outputs = {id(head.shared_output) if isinstance(head, FeatureDrafter) else None for head in self.heads}
        self.batched = self.routing.batched and len(self.heads) > 1 and len(outputs) == 1 and None not in outputs

    @classmethod
    def of(cls, drafter: Drafter) -> RoutedDrafter:
        """Wrap a single drafter; a RoutedDrafter is returned as it is."""
        return drafter if isinstance(drafter, RoutedDrafter) else cls((drafter,))

    def new_state(self) -> RoutedState:
        return RoutedState(self)


class RoutedState:
    """The draft state of several heads. As a DraftState it is that of the head in use, `current`."""

    def __init__(self, heads: RoutedDrafter) -> None:
        self._heads = heads
        self._states = [head.new_state() for head in heads.heads]
        self._with_features = [s for s, head in zip(self._states, heads.heads, strict=True) if head.tap.fingerprint]
        self._joint = [state for state in self._states if isinstance(state, FeatureState)] if heads.batched else []
        self._num_passes = 0
        self.current = 0

    @property
    def num_tokens(self) -> int:
        return self._states[0].num_tokens

    @property
    def num_features(self) -> int:
        return self._with_features[0].num_features if self._with_features else 0

    @property
    def max_levels(self) -> int:
        return self._states[self.current].max_levels

    def append(self, tokens: Sequence[int]) -> None:
        for state in self._states:
            state.append(tokens)

    def add_features(self, first: int, rows: Tensor) -> None:
        for state in self._with_features:
            state.add_features(first, rows)

    def rollback(self, num_tokens: int) -> None:
        for state in self._states:
            state.rollback(num_tokens)

    def root_logits(self) -> Tensor:
        return self._states[self.current].root_logits()

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        return self._states[self.current].expand(tokens, parents)

    def tree_logits(self, tree: DraftTree) -> Tensor:
        return self._states[self.current].tree_logits(tree)

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
        passes_before = self._num_passes
        gated = bool(others) and routing.gate is not None
        roots = self._roots([first] if gated else [first, *others])
        skipped = gated and not routing.needs_comparison(_first_probability(roots[first]))
        if gated and not skipped:
            roots |= self._roots(others)
        drafts = self._grow(roots, plan, cancelled)
        confidences = {head: confidence_of(drafted) for head, drafted in drafts.items()}
        self.current = routing.choose(confidences, first)
        return RoutedDraft(
            drafts[self.current],
            self.current,
            confidences[self.current],
            len(drafts),
            self._num_passes - passes_before,
            skipped,
        )

    def _grow(
        self, roots: Mapping[int, Tensor], plan: TreePlan, cancelled: Callable[[], bool]
    ) -> dict[int, ScoredTree]:
        """Grow trees from some heads' logits at the root, side by side, level by level."""
        measure = len(self._heads.heads) > 1
        builders = {head: start_tree(logits, plan, entropies=measure) for head, logits in roots.items()}
        for depth in range(1, plan.levels):
            able = [head for head in builders if depth < self._states[head].max_levels]
            levels = {head: level for head in able if (level := builders[head].level()) is not None}
            # Before the pass, not after it: what is grown so far is complete between levels.
            if not levels or cancelled():
                break
            for head, logits in self._expanded(levels).items():
                builders[head].take(logits)
        return {head: builder.drafted() for head, builder in builders.items()}

    def _roots(self, heads: Sequence[int]) -> dict[int, Tensor]:
        """Start a new draft of some heads: logits [V] for the root's successor."""
        if self._joint and len(heads) > 1:
            self._num_passes += 1
            return dict(zip(heads, FeatureState.roots_together([self._joint[head] for head in heads]), strict=True))
        self._num_passes += len(heads)
        return {head: self._states[head].root_logits() for head in heads}

    def _expanded(self, levels: Mapping[int, Level]) -> dict[int, Tensor]:
        """Compute logits [n, V] for each head's level."""
        if self._joint and len(levels) > 1:
            self._num_passes += 1
            together = [(self._joint[head], level) for head, level in levels.items()]
            return dict(zip(levels, FeatureState.expand_together(together), strict=True))
        self._num_passes += len(levels)
        return {head: self._states[head].expand(level.tokens, level.parents) for head, level in levels.items()}

    def _able(self) -> list[int]:
        return [head for head in range(len(self._states)) if self._states[head].max_levels]


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
