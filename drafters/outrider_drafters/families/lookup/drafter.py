"""Prompt lookup (n-gram drafting): where the end of the text occurred before, copy what followed it then.

    ... the quick fox | jumps over ... the quick fox        the longest suffix of at most `ngram` tokens that occurred
        ^^^^^^^^^^^^^   ^^^^^^^^^^ drafted ^^^^^^^^^^^^^     before with a token after it; of its places the leftmost

Drafts equal those of transformers' PromptLookupCandidateGenerator with max_matching_ngram_size = ngram, and of vLLM's
ngram proposer with prompt_lookup_min = 1 and prompt_lookup_max = ngram. Unlike the former it also drafts an end token,
which the target judges like any other. It needs no files, features or model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_drafters.blocks.token_state import TokenState, WithTokenState
from outrider_drafters.contracts.drafter import tree_logits_by_level
from outrider_drafters.contracts.tap import NO_FEATURES
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT, DraftTree

NAME = "lookup"

NGRAM = 3

CHAIN = TreeShape.chain(10)  # transformers' prompt_lookup_num_tokens


class LookupDrafter:
    """Propose what followed the longest match of the last `ngram` tokens or fewer, and at least `shortest`.

    Raises UsageError for ngram below 1.
    """

    family = NAME
    tap = NO_FEATURES
    stale_tolerant = True  # it has none
    tree_in_one_pass = True
    levels_per_pass = 1

    def __init__(self, vocab_size: int, ngram: int = NGRAM, shortest: int = 1) -> None:
        if ngram < 1:
            raise UsageError(f"{NAME}: ngram={ngram}: need at least 1")
        self.vocab_size = vocab_size
        self.ngram = ngram
        self.shortest = shortest
        self.plan: TreePlan | None = CHAIN

    def new_state(self) -> LookupState:
        return LookupState(self)


class LookupState(WithTokenState):
    """The text, and where each of its n-grams first occurred.

    Appending, rolling back and looking up take `ngram` steps per token, independent of the text's length.
    """

    def __init__(self, drafter: LookupDrafter) -> None:
        self._drafter = drafter
        self._token_state = TokenState(NO_FEATURES.width)
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> position after its first occurrence, where a token is
        self._places: list[int | None] = []  # per expanded node: the position it was copied from, else None

    @property
    def max_levels(self) -> int:
        """Number of tokens after the match; 0 without one."""
        match = self._match()
        return 0 if match is None else self.num_tokens - match

    def append(self, tokens: Sequence[int]) -> None:
        first = self.num_tokens
        super().append(tokens)
        # Only n-grams that a token follows: the one at the text's end would match itself and copy nothing.
        for end in range(first, self.num_tokens):
            for ngram in self._ngrams(end):
                self._ends.setdefault(ngram, end)

    def add_features(self, first: int, rows: Tensor) -> None:
        self._token_state.add_features(first, rows)

    def rollback(self, num_tokens: int) -> None:
        gone = [(ngram, end) for end in range(num_tokens, self.num_tokens) for ngram in self._ngrams(end)]
        self._token_state.rollback(num_tokens)
        # Only entries that point to a dropped position: an earlier occurrence of the same n-gram stays.
        for ngram, end in gone:
            if self._ends.get(ngram) == end:
                del self._ends[ngram]

    def root_logits(self) -> Tensor:
        self._token_state.need_root()
        self._places.clear()
        match = self._match()
        if match is None:
            raise UsageError(f"{NAME}: the last token did not occur before: nothing to draft")
        return self._certain([match])[0]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        root_place = None if (match := self._match()) is None else match - 1
        for token, parent in zip(tokens, parents, strict=True):
            above = root_place if parent == ROOT else self._places[parent]
            self._places.append(None if above is None or self._token_at(above + 1) != token else above + 1)
        return self._certain([None if place is None else place + 1 for place in self._places[-len(tokens) :]])

    def tree_logits(self, tree: DraftTree) -> Tensor:
        return tree_logits_by_level(tree, self.root_logits(), self.expand)

    def _match(self) -> int | None:
        """Return the position to copy from, if any."""
        ngrams = self._ngrams(self.num_tokens)
        return next((self._ends[ngram] for ngram in ngrams if ngram in self._ends), None)

    def _ngrams(self, end: int) -> list[tuple[int, ...]]:
        """Return the n-grams that end before position `end`, the longest first."""
        tokens, longest = self._token_state.tokens, min(self._drafter.ngram, end)
        return [tuple(tokens[end - n : end]) for n in range(longest, self._drafter.shortest - 1, -1)]

    def _token_at(self, position: int) -> int | None:
        return self._token_state.tokens[position] if position < self.num_tokens else None

    def _certain(self, positions: Sequence[int | None]) -> Tensor:
        """Return logits [n, V]: 0 for the token at each position, -inf for all others."""
        logits = torch.full((len(positions), self._drafter.vocab_size), -math.inf)
        for row, position in enumerate(positions):
            if position is not None and (token := self._token_at(position)) is not None:
                logits[row, token] = 0.0
        return logits
