"""Suffix decoding as a drafter: the best candidate tree of the text's end, a level at a time. Needs no weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider_drafters.blocks.token_state import TokenState
from outrider_drafters.checkpoints.draft_vocabulary import DraftLogits
from outrider_drafters.contracts.drafter import Drafter, WithTokenState
from outrider_drafters.contracts.tap import NO_FEATURES
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.families.family import Family
from outrider_drafters.families.suffix.index import LEAST, CandidateRows, Candidates, GrowingText, candidates
from outrider_proto.errors import UsageError

NAME = "suffix"
TREE = TreeShape(breadth=8, levels=16, budget=16, min_probability=LEAST)


class SuffixDrafter(Drafter):
    """Propose what followed the text's end in the text and, where the client lets it, in earlier answers."""

    family = NAME
    tap = NO_FEATURES
    stale_tolerant = True  # it has none
    tree_in_one_pass = True

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.plan = TREE

    def candidates(self, text: GrowingText) -> Candidates:
        """Return what may follow the text's end."""
        return candidates(text)

    def new_state(self) -> SuffixState:
        return SuffixState(self)


class SuffixState(WithTokenState):
    """The text, and the candidates of the current draft."""

    def __init__(self, drafter: SuffixDrafter) -> None:
        self._drafter = drafter
        self._token_state = TokenState(NO_FEATURES.width)
        self._text = GrowingText()
        self._rows = CandidateRows()

    @property
    def max_levels(self) -> int:
        """Levels of the candidates; 0 without any."""
        return max(self._drafter.candidates(self._text).tree.depths(), default=0)

    def append(self, tokens: Sequence[int]) -> None:
        super().append(tokens)
        self._text.append(tokens)

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        self._text.rollback(num_tokens)

    def root_logits(self) -> Tensor:
        self._token_state.need_root()
        after_root = self._rows.begin(self._drafter.candidates(self._text))
        if not after_root:
            raise UsageError(f"{self._drafter.family}: the last token did not occur before: nothing to draft")
        drafted, tokens = columns([after_root])
        return DraftLogits.of(drafted[0], tokens, self._drafter.vocab_size, normalized=True)

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        drafted, followers = columns(self._rows.expand(tokens, parents))
        return DraftLogits.of(drafted, followers, self._drafter.vocab_size, normalized=True)


def columns(rows: Sequence[Mapping[int, float]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return log-probabilities [n, k] from those of some tokens in each row, and these tokens [k], rising."""
    tokens = sorted({token for row in rows for token in row})
    shares = [[row.get(token, 0.0) for token in tokens] for row in rows]
    drafted = torch.tensor(shares, device=device).reshape(len(rows), len(tokens)).log()
    return drafted, torch.tensor(tokens, dtype=torch.int64, device=device)


FAMILY = Family(
    name=NAME,
    features="nothing",
    offline="copies",
    trees="dynamic",
    drafter=lambda files, target: SuffixDrafter(target.sizes.vocab),
    needs_files=False,
)
