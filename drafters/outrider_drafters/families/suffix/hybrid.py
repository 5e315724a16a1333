"""A drafter whose trees also hold what followed the text's end before: both grow as branches of one tree.

    the candidates leave 1 - c open  ->  log(c + (1 - c) p): the counts fall back on what the drafter holds likely
    a long pattern                   ->  the candidates alone, without a forward pass of the drafter

So one tree is grown, whose nodes the drafter expands wherever they come from: a candidate's children are its own
guesses, too, as far as the tree goes. Only drafts are blended (root_logits, expand). What the drafter itself holds
likely (tree_logits) is its own, so that it does not write alone by copying: a text written so would never leave its
first loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider_drafters.checkpoints.draft_vocabulary import DraftLogits
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DrafterOption
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.drafter_wrapper import DrafterWrapper, StateWrapper
from outrider_drafters.families.suffix.family import columns
from outrider_drafters.families.suffix.index import NOTHING, CandidateRows, GrowingText, candidates
from outrider_drafters.readers.config import config_int
from outrider_drafters.trees.grow import JointState, Level
from outrider_proto.tree import DraftTree

COPY_OPTION = DrafterOption.whole(
    "copy", "draft by copying where so many of the last tokens, or more, occurred before; 0: never"
)
SUFFIX_OPTION = DrafterOption.whole(
    "suffix", "make branches of the tree of what followed so many of the last tokens, or more, before; 0: none"
)
# Keys of a drafter's config.json: `alone_from` and `shortest`, where the options `copy` and `suffix` do not say them.
COPY, SUFFIX = "outrider_copy", "outrider_suffix"


def with_candidates(drafter: Drafter, files: DrafterFiles, device: torch.device) -> Drafter:
    """Wrap a drafter, which computes on `device`, as its options say, or else its files do. Raises UsageError."""

    def chosen(option: DrafterOption[int], key: str) -> int:
        value = files.options.get(option)
        if value is None and files.config.get(key) is not None:
            return config_int(files.config, key)
        return value or 0

    shortest, alone_from = chosen(SUFFIX_OPTION, SUFFIX), chosen(COPY_OPTION, COPY)
    return HybridDrafter(drafter, shortest, alone_from, device) if shortest or alone_from else drafter


class HybridDrafter(DrafterWrapper):
    """`inner` with candidates from patterns of `shortest` tokens or more, alone from `alone_from` on; 0: never.

    Logits of candidates alone are on `device`, as the inner drafter's should be: a server reads those of many at once.
    """

    def __init__(self, inner: Drafter, shortest: int, alone_from: int, device: torch.device | str = "cpu") -> None:
        super().__init__(inner)
        self.device = torch.device(device)
        self.shortest = shortest
        self.alone_from = alone_from

    def new_state(self) -> HybridState:
        return HybridState(self)


class HybridState(StateWrapper):
    """The text in the inner drafter's state and among the candidates; the features in the inner one's."""

    def __init__(self, drafter: HybridDrafter) -> None:
        super().__init__(drafter.inner.new_state(), drafter)
        self._drafter = drafter
        self._text = GrowingText()
        self._rows = CandidateRows()
        self._is_alone = False  # the current draft is made of candidates only

    def append(self, tokens: Sequence[int]) -> None:
        super().append(tokens)
        self._text.append(tokens)

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        self._text.rollback(num_tokens)

    def root_logits(self) -> Tensor:
        # max_levels stays the inner one's: past the candidates' end, expand returns no successors.
        shortest, alone_from = self._drafter.shortest, self._drafter.alone_from
        found = candidates(self._text, min(shortest or alone_from, alone_from or shortest))
        self._is_alone = 0 < alone_from <= found.pattern_len
        after_root = self._rows.begin(found)
        if self._is_alone:
            drafted, tokens = columns([after_root], self._drafter.device)
            return DraftLogits.of(drafted[0], tokens, self._drafter.vocab_size, normalized=True)
        return blended(super().root_logits().unsqueeze(0), [after_root])[0]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        following = self._rows.expand(tokens, parents)
        if self._is_alone:
            drafted, followers = columns(following, self._drafter.device)
            return DraftLogits.of(drafted, followers, self._drafter.vocab_size, normalized=True)
        return blended(super().expand(tokens, parents), following)

    @staticmethod
    def expand_together(levels: Sequence[tuple[HybridState, Level]]) -> list[Tensor]:
        """Expand the inner states' levels in one pass where they can, and blend each with its own candidates."""
        inner = [(state.inner, level) for state, level in levels if not state._is_alone]
        if inner and isinstance(inner[0][0], JointState):
            drafted = iter(inner[0][0].expand_together(inner))
        else:
            drafted = iter([state.expand(level.tokens, level.parents) for state, level in inner])
        return [
            state.expand(level.tokens, level.parents)
            if state._is_alone
            else blended(next(drafted), state._rows.expand(level.tokens, level.parents))
            for state, level in levels
        ]

    def tree_logits(self, tree: DraftTree) -> Tensor:
        self._is_alone = False
        # Draft rows ahead of a verdict lie below these nodes.
        shortest = self._drafter.shortest
        self._rows.begin(candidates(self._text, shortest) if shortest else NOTHING)
        self._rows.expand(tree.tokens, tree.parents)
        return self.inner.tree_logits(tree)


def blended(logits: Tensor, following: Sequence[Mapping[int, float]]) -> Tensor:
    """Blend logits [n, V] with the candidates after each row; the rest of a row's probability is the drafter's own."""
    if not any(following):
        return logits
    candidates, tokens = columns(following, logits.device)
    rest = (1 - candidates.exp().sum(-1, keepdim=True)).clamp_min(0).log()
    if not isinstance(logits, DraftLogits):
        own = logits.float().log_softmax(-1) + rest
        own[:, tokens] = torch.logaddexp(own[:, tokens], candidates)
        return own
    own = logits.drafted.float().log_softmax(-1) + rest
    # Candidates outside the draft vocabulary become further columns.
    known = torch.isin(tokens, logits.tokens)
    at = torch.searchsorted(logits.tokens, tokens[known])
    own[:, at] = torch.logaddexp(own[:, at], candidates[:, known])
    both = torch.cat((own, candidates[:, ~known]), dim=-1), torch.cat((logits.tokens, tokens[~known]))
    return DraftLogits.of(*both, logits.shape[-1], normalized=True)
