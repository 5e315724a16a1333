"""A drafter that copies where the text repeats itself, and drafts with another one elsewhere.

    the last `shortest` tokens or more occurred before  ->  a chain of what followed them then, without a forward pass
    else                                                ->  the other drafter's tree

Only drafts are copied (root_logits, expand). What the drafter itself holds likely (tree_logits) is the other one's, so
that it neither writes alone nor drafts ahead by copying: a text written by copying would never leave its first loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outrider_drafters.checkpoints.options import DrafterOption
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.drafter_wrapper import DrafterWrapper, StateWrapper
from outrider_drafters.families.lookup.drafter import LookupDrafter
from outrider_drafters.trees.grow import JointState, Level
from outrider_proto.tree import DraftTree

COPY_OPTION = DrafterOption.whole(
    "copy", "draft by copying where so many of the last tokens, or more, occurred before; 0: never"
)
COPY = "outrider_copy"  # key of a drafter's config.json: `shortest`, where the option `copy` does not say it
_LONGEST = 8  # tokens of a match: longer ones tell places apart that hardly ever differ


class CopyingDrafter(DrafterWrapper):
    """`inner`, but copying from matches of `shortest` tokens or more, at least 1."""

    def __init__(self, inner: Drafter, shortest: int) -> None:
        super().__init__(inner)
        self._copies = LookupDrafter(inner.vocab_size, max(shortest, _LONGEST), shortest)

    def new_state(self) -> CopyingState:
        return CopyingState(self, self._copies)


class CopyingState(StateWrapper):
    """The text in both drafters' states; the features in the inner one's."""

    def __init__(self, drafter: CopyingDrafter, copies: LookupDrafter) -> None:
        super().__init__(drafter.inner.new_state(), drafter)
        self._copied = copies.new_state()
        self._is_copying = False  # the current draft is a copy

    def append(self, tokens: Sequence[int]) -> None:
        super().append(tokens)
        self._copied.append(tokens)

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        self._copied.rollback(num_tokens)

    def root_logits(self) -> Tensor:
        # max_levels stays the inner one's: past a copy's end, expand returns no successors.
        self._is_copying = self._copied.max_levels > 0
        return self._copied.root_logits() if self._is_copying else super().root_logits()

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        return self._copied.expand(tokens, parents) if self._is_copying else super().expand(tokens, parents)

    @staticmethod
    def expand_together(levels: Sequence[tuple[CopyingState, Level]]) -> list[Tensor]:
        """Expand the copies, and the inner states' levels in one pass where they can."""
        inner = [(state.inner, level) for state, level in levels if not state._is_copying]
        if inner and isinstance(inner[0][0], JointState):
            drafted = iter(inner[0][0].expand_together(inner))
        else:
            drafted = iter([state.expand(level.tokens, level.parents) for state, level in inner])
        return [
            state._copied.expand(level.tokens, level.parents) if state._is_copying else next(drafted)
            for state, level in levels
        ]

    def tree_logits(self, tree: DraftTree) -> Tensor:
        self._is_copying = False
        return self.inner.tree_logits(tree)
