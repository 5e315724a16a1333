"""A drafter that wraps another one and runs code around its forward passes."""

from collections.abc import Callable, Sequence

from torch import Tensor

from outrider_drafters.contracts.drafter import Drafter, DraftState, tree_logits_by_level
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_proto.frames import TapInfo
from outrider_proto.tree import DraftTree


class DrafterWrapper:
    """Base class: subclasses override `around`, through which every forward pass runs."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.family = inner.family
        self.vocab_size = inner.vocab_size
        self.tap: TapInfo = inner.tap
        self.plan: TreePlan | None = inner.plan
        self.hint = getattr(inner, "hint", "")  # a package's drafter may be older
        self.stale_tolerant = inner.stale_tolerant
        self.tree_in_one_pass = inner.tree_in_one_pass
        self.levels_per_pass = inner.levels_per_pass

    def new_state(self) -> DraftState:
        return StateWrapper(self.inner.new_state(), self)

    def around(self, run: Callable[[], Tensor]) -> Tensor:
        """Run one forward pass."""
        return run()


class StateWrapper:
    """The wrapped drafter's state, its passes run through `around`."""

    def __init__(self, inner: DraftState, drafter: DrafterWrapper) -> None:
        self.inner = inner
        self._around = drafter.around
        self._tree_in_one_pass = drafter.tree_in_one_pass

    @property
    def num_tokens(self) -> int:
        return self.inner.num_tokens

    @property
    def num_features(self) -> int:
        return self.inner.num_features

    @property
    def max_levels(self) -> int:
        return self.inner.max_levels

    def append(self, tokens: Sequence[int]) -> None:
        self.inner.append(tokens)

    def add_features(self, first: int, rows: Tensor) -> None:
        self.inner.add_features(first, rows)

    def rollback(self, num_tokens: int) -> None:
        self.inner.rollback(num_tokens)

    def root_logits(self) -> Tensor:
        return self._around(self.inner.root_logits)

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        return self._around(lambda: self.inner.expand(tokens, parents))

    def tree_logits(self, tree: DraftTree) -> Tensor:
        if self._tree_in_one_pass or not tree.tokens:  # the root alone is one pass for any
            return self._around(lambda: self.inner.tree_logits(tree))
        # Through this wrapper's own methods, so that every level's pass runs in `around`. Around a hybrid drafter,
        # drafts ahead of a copied tree are then copies, too.
        return tree_logits_by_level(tree, self.root_logits(), self.expand)
