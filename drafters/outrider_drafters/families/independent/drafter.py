"""An independent drafter's state: a causal model's cache over the text, with the draft's rows behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.token_state import TokenState, TreeMask
from outrider_drafters.checkpoints.draft_vocabulary import over_target_vocabulary
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import UNLIMITED, Drafter, WithTokenState
from outrider_drafters.contracts.tap import NO_FEATURES
from outrider_drafters.contracts.tree_shape import MAX_LEVELS
from outrider_drafters.families.independent.network import CausalCache, CausalModel
from outrider_drafters.readers.config import read_json
from outrider_proto.errors import UsageError
from outrider_proto.tree import DraftTree

TOKENIZER = "tokenizer.json"


def check_vocabulary(files: DrafterFiles, rows: int, target: TargetWeights) -> None:
    """Raise UsageError unless a drafter with `rows` embeddings has the target's tokens, but for padding."""
    # Models of one family pad a tokenizer's vocabulary to different sizes (Qwen2.5: 151936 and 152064 rows for 151665
    # tokens). Tokens may not differ: a drafter with another tokenizer drafts nonsense without any error.
    ours, theirs = _words(files.directory), _words(target.directory)
    if ours is None or theirs is None:
        if rows != target.sizes.vocab:
            raise files.fault(
                f"vocabulary of {rows}, the target's has {target.sizes.vocab}: whether that is padding, only"
                f" {TOKENIZER} of both could tell"
            )
        return
    for token in sorted(ours.keys() & theirs.keys()):
        if ours[token] != theirs[token]:
            raise files.fault(f"token {token} is {ours[token]!r}, the target's is {theirs[token]!r}: another tokenizer")
    if theirs and max(theirs) >= rows:
        raise files.fault(f"vocabulary of {rows}: the target's tokenizer has token {max(theirs)}, too")


def fit_logits(logits: Tensor, vocab_size: int) -> Tensor:
    """Fit logits [n, rows] to [n, vocab_size]: cut off tokens the target lacks, -inf for those the drafter lacks."""
    rows = logits.shape[-1]
    return logits[..., :vocab_size] if rows >= vocab_size else F.pad(logits, (0, vocab_size - rows), value=-math.inf)


def _words(directory: Path | None) -> dict[int, str] | None:
    """Read all tokens by id, added ones included; None without tokenizer.json. Raises UsageError."""
    path = None if directory is None else directory / TOKENIZER
    if path is None or not path.is_file():
        return None
    tokenizer = read_json(path)
    try:
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, dict):
            words = {token: word for word, token in vocabulary.items()}
        else:  # Unigram's: pieces with their scores, in order
            words = {token: piece for token, (piece, _) in enumerate(vocabulary)}
        return words | {added["id"]: added["content"] for added in tokenizer.get("added_tokens") or ()}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: has no vocabulary ({error!r})") from error


NAME = "independent"

FAR = 4 * MAX_LEVELS  # levels, more than any draft has

CHUNK = 512  # tokens per pass: mask and scores grow with its square


class IndependentDrafter(Drafter):
    """Client half. There is no server half."""

    family = NAME
    tap = NO_FEATURES
    stale_tolerant = True  # it has none
    tree_in_one_pass = True

    def __init__(self, model: CausalModel, vocab_size: int, tokens: Tensor | None = None) -> None:
        """`tokens` [rows] int64: what the rows of the model's head stand for; None: token i for row i."""
        self.model = model
        self.tokens = None if tokens is None else tokens.to(model.model.device)
        self.vocab_size = vocab_size

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
