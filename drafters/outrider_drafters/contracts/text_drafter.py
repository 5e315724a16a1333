"""A base class for custom drafters without features: one method maps a text to its likely next tokens."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider_drafters.blocks.token_state import TokenState
from outrider_drafters.contracts.drafter import UNLIMITED, Drafter, WithTokenState
from outrider_drafters.contracts.tap import NO_FEATURES
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT


class TextDrafter(Drafter, ABC):
    """A custom drafter: `replace(LocalModels.load(config), drafter=MyDrafter(vocab_size))` makes a client use it."""

    family = "text"
    tap = NO_FEATURES
    stale_tolerant = True  # it has none

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    @abstractmethod
    def guesses(self, text: Sequence[int]) -> Mapping[int, float]:
        """Return the tokens that may follow `text`, each with a weight above 0; empty if it has no guess.

        The result must depend on `text` alone. It is called for every node of a draft tree, so it should be fast.
        """

    def new_state(self) -> TextState:
        return TextState(self)


class TextState(WithTokenState):
    """The draft state of a TextDrafter: the text and the paths of the expanded nodes."""

    def __init__(self, drafter: TextDrafter) -> None:
        self._drafter = drafter
        self._token_state = TokenState(NO_FEATURES.width)
        self._branches: list[tuple[int, ...]] = []  # of each expanded node: its path below the root

    @property
    def max_levels(self) -> int:
        return UNLIMITED if self.num_tokens and self._drafter.guesses(tuple(self._token_state.tokens)) else 0

    def root_logits(self) -> Tensor:
        self._token_state.need_root()
        self._branches.clear()
        logits = self._logits(())
        if logits.isneginf().all():
            raise UsageError(f"{self._drafter.family}: it cannot tell what follows: nothing to draft")
        return logits

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        above = [() if parent == ROOT else self._branches[parent] for parent in parents]
        branches = [(*branch, token) for branch, token in zip(above, tokens, strict=True)]
        self._branches += branches
        return torch.stack([self._logits(branch) for branch in branches])

    def _logits(self, branch: tuple[int, ...]) -> Tensor:
        logits = torch.full((self._drafter.vocab_size,), -math.inf)
        for token, weight in self._drafter.guesses((*self._token_state.tokens, *branch)).items():
            if not (0 <= token < len(logits) and 0 < weight < math.inf):
                raise UsageError(
                    f"{self._drafter.family}: guess of token {token} with weight {weight}: need a token below"
                    f" {len(logits)} and a weight above 0"
                )
            logits[token] = math.log(weight)
        return logits
