"""An independent drafter's state: a causal model's cache over the text, with the draft's rows behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider_drafters.blocks.token_state import TokenState, WithTokenState
from outrider_drafters.blocks.tree_mask import TreeMask
from outrider_drafters.checkpoints.draft_vocabulary import over_target_vocabulary
from outrider_drafters.contracts.drafter import UNLIMITED
from outrider_drafters.contracts.tap import NO_FEATURES
from outrider_drafters.contracts.tree_shape import MAX_LEVELS, TreePlan
from outrider_drafters.families.independent.network import CausalCache, CausalModel
from outrider_drafters.families.independent.vocabulary import fit_logits
from outrider_proto.errors import UsageError
from outrider_proto.tree import DraftTree

if TYPE_CHECKING:
    pass


NAME = "independent"

FAR = 4 * MAX_LEVELS  # levels, more than any draft has

CHUNK = 512  # tokens per pass: mask and scores grow with its square


class IndependentDrafter:
    """Client half. There is no server half."""

    family = NAME
    tap = NO_FEATURES
    stale_tolerant = True  # it has none
    tree_in_one_pass = True
    levels_per_pass = 1

    def __init__(self, model: CausalModel, vocab_size: int, tokens: Tensor | None = None) -> None:
        """`tokens` [rows] int64: what the rows of the model's head stand for; None: token i for row i."""
        self.model = model
        self.tokens = None if tokens is None else tokens.to(model.model.device)
        self.vocab_size = vocab_size
        self.plan: TreePlan | None = None

    def new_state(self) -> IndependentState:
        return IndependentState(self)


class IndependentState(WithTokenState):
    """The model's cache over the text, followed by the rows of expanded nodes."""

    def __init__(self, drafter: IndependentDrafter) -> None:
        self._drafter = drafter
        self._token_state = TokenState(NO_FEATURES.width)
        self._cache = CausalCache()
        self._tree_mask = TreeMask(drafter.model.model.device)
        self._num_text_rows = 0  # rows of the cache that are tokens'; draft rows follow

    @property
    def max_levels(self) -> int:
        """Levels left in the model's context, UNLIMITED while its end is far."""
        # Bounded because models with learned positions fail beyond their context.
        limit = self._drafter.model.max_context
        left = UNLIMITED if limit is None else max(0, limit - self.num_tokens + 1)
        return left if left <= FAR else UNLIMITED

    def add_features(self, first: int, rows: Tensor) -> None:
        self._token_state.add_features(first, rows)

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        self._num_text_rows = min(self._num_text_rows, num_tokens)

    def root_logits(self) -> Tensor:
        self._token_state.need_root()
        if not self.max_levels:
            limit = self._drafter.model.max_context
            raise UsageError(f"{NAME}: the text has {self.num_tokens} tokens, the drafter's context {limit}")
        self._tree_mask.clear()
        first = min(self._num_text_rows, self.num_tokens - 1)  # the root at least: its logits are needed
        self._cache.truncate(first)
        for start in range(first, self.num_tokens, CHUNK):
            stop = min(start + CHUNK, self.num_tokens)
            logits = self._run(self._token_state.tokens[start:stop], range(start, stop), None, last_only=True)
        self._num_text_rows = self.num_tokens
        return logits[0]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        depths, mask = self._tree_mask.add(parents, self._num_text_rows)
        return self._run(tokens, (depths + (self.num_tokens - 1)).tolist(), mask, last_only=False)

    def tree_logits(self, tree: DraftTree) -> Tensor:
        root = self.root_logits().unsqueeze(0)
        return torch.cat((root, self.expand(tree.tokens, tree.parents))) if tree.tokens else root

    def _run(self, tokens: Sequence[int], positions: Sequence[int], mask: Tensor | None, *, last_only: bool) -> Tensor:
        model = self._drafter.model
        # The target may choose a padding token beyond this model's vocabulary; the model then reads its last token.
        known = [min(token, model.num_rows - 1) for token in tokens]
        logits = model.run(known, positions, self._cache, mask, last_only)
        if self._drafter.tokens is not None:
            return over_target_vocabulary(logits, self._drafter.tokens, self._drafter.vocab_size)
        return fit_logits(logits, self._drafter.vocab_size)
