"""Draft vocabularies: the target's tokens that a drafter's head computes logits of (FR-Spec, arXiv 2502.14856).

DRAFT_VOCAB in a drafter's directory holds them, the most frequent first: a smaller one is its beginning. EAGLE-3
has a form of its own: its head maps its id d to the target's token d + d2t[d].
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.readers.config import read_json
from outrider_proto.errors import UsageError

DRAFT_VOCAB = "draft_vocab.json"


class DraftLogits(Tensor):
    """Logits [..., V] with -inf for all tokens but some, that carry those of `tokens` [Vd] as `drafted` [..., Vd].

    Whatever is computed of it is a plain tensor: only code that knows of `drafted` takes the shorter way.
    `normalized`: they are log-probabilities as they stand, also where those of a row come to less than 1.
    """

    drafted: Tensor
    tokens: Tensor
    normalized: bool

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's own has no types

    @classmethod
    def of(cls, drafted: Tensor, tokens: Tensor, vocab: int, *, normalized: bool = False) -> DraftLogits:
        logits = drafted.new_full((*drafted.shape[:-1], vocab), -torch.inf).index_copy_(-1, tokens, drafted)
        return cls.carrying(logits, drafted, tokens, normalized)

    @property
    def as_rows(self) -> DraftLogits:
        """Logits [V] as one row [1, V]."""
        return self.carrying(self.unsqueeze(0), self.drafted.unsqueeze(0), self.tokens, self.normalized)

    @classmethod
    def carrying(cls, logits: Tensor, drafted: Tensor, tokens: Tensor, normalized: bool) -> DraftLogits:
        made = logits.as_subclass(cls)
        made.drafted, made.tokens, made.normalized = drafted, tokens, normalized
        return made


def split_logits(logits: Tensor, sizes: list[int]) -> list[Tensor]:
    """Split rows of logits [n, V] as torch's split does; the parts of DraftLogits are DraftLogits."""
    parts = torch.split(logits, sizes)
    if not isinstance(logits, DraftLogits):
        return list(parts)
    drafted = zip(parts, torch.split(logits.drafted, sizes), strict=True)
    return [logits.carrying(part, of_part, logits.tokens, logits.normalized) for part, of_part in drafted]


def write_draft_vocab(place: Path, tokens: Iterable[int]) -> None:
    """Write the target's token ids that may be drafted, the most frequent first, to a drafter's directory or a file."""
    path = place / DRAFT_VOCAB if place.is_dir() else place
    path.write_text(json.dumps({"tokens": [int(token) for token in tokens]}) + "\n")


def read_draft_vocab(path: Path, vocab: int) -> tuple[int, ...]:
    """Read the token ids of a file, the most frequent first. Raises UsageError unless all are distinct and < vocab."""
    tokens = read_json(path).get("tokens")
    # `type`, not isinstance: JSON's true and false are integers to Python.
    if not isinstance(tokens, list) or not tokens or any(type(token) is not int for token in tokens):
        raise UsageError(f"{path}: tokens: need a list of token ids")
    if len(set(tokens)) != len(tokens) or not 0 <= min(tokens) <= max(tokens) < vocab:
        raise UsageError(f"{path}: tokens: need distinct ids from 0 to {vocab - 1}, those of the target")
    return tuple(tokens)


def select_rows(weight: Tensor, stored: Tensor | None, wanted: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Gather the rows of a head [n, E] or bias [n] for the `wanted` tokens [k]; returns them and their tokens, rising.

    Row i stands for token stored[i]; None: for token i. `wanted` None: all. Raises UsageError if no row is left.
    """
    if wanted is None:
        return weight, stored
    rows = (wanted < len(weight)).nonzero()[:, 0] if stored is None else torch.isin(stored, wanted).nonzero()[:, 0]
    rows = wanted[rows] if stored is None else rows
    if not len(rows):
        raise UsageError("draft vocabulary: the head has no row for any of its tokens: it is of another target")
    return weight[rows], rows if stored is None else stored[rows]


class DraftHead:
    """Rows of a head for the tokens that are drafted, `tokens` [Vd]; None: row i is token i.

    They are those of weight [n, E] and bias [n] whose tokens, `stored`, are `wanted`: see select_rows().
    """

    def __init__(
        self, weight: Tensor, stored: Tensor | None, wanted: Tensor | None, vocab: int, bias: Tensor | None = None
    ) -> None:
        stored = None if stored is None else stored.to(weight.device)
        weight, self.tokens = select_rows(weight, stored, wanted)
        bias = None if bias is None else select_rows(bias, stored, wanted)[0]
        self.linear, self._vocab = PackedLinear(weight, bias, packed=None), vocab

    def drafted(self, hidden: Tensor) -> Tensor:
        """Compute logits [..., Vd] float32 of hidden states [..., E]."""
        return self.linear(hidden).float()

    def over_vocabulary(self, logits: Tensor) -> Tensor:
        """Scatter logits [..., Vd] to [..., V], -inf for tokens that cannot be drafted."""
        # -inf keeps log-softmax over V equal to that over Vd, so that no other code needs the map.
        return logits if self.tokens is None else DraftLogits.of(logits, self.tokens, self._vocab)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [..., V] float32 of hidden states [..., E]."""
        return self.over_vocabulary(self.drafted(hidden))


def draft_tokens(d2t: Tensor, vocab: int) -> Tensor:
    """Compute target ids [Vd] int64 from offsets [Vd]. Raises UsageError for ids out of range or not rising."""
    tokens = torch.arange(len(d2t), device=d2t.device) + d2t.to(torch.int64)
    if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab):
        raise UsageError(
            f"d2t leads to token {int(tokens.min())} to {int(tokens.max())}: need 0 to {vocab - 1}; it holds offsets "
            "(target id - draft id), not ids"
        )
    if bool((tokens.diff() <= 0).any()):
        raise UsageError("d2t: the target ids it leads to must rise from one draft id to the next")
    return tokens


def offsets(tokens: Tensor) -> Tensor:
    """Compute d2t [Vd] int64 from rising target ids [Vd]."""
    return tokens.to(torch.int64) - torch.arange(len(tokens), device=tokens.device)


def membership(tokens: Tensor, vocab: int) -> Tensor:
    """Compute t2d [V] bool, true for target ids that can be drafted."""
    drafted = torch.zeros(vocab, dtype=torch.bool, device=tokens.device)
    drafted[tokens] = True
    return drafted


def check_membership(t2d: Tensor, tokens: Tensor, vocab: int) -> None:
    """Raise UsageError unless t2d [V] marks exactly the draft ids' target ids."""
    if t2d.shape != (vocab,):
        raise UsageError(f"t2d has shape {list(t2d.shape)}: need [{vocab}]")
    if not torch.equal(t2d.to(torch.bool), membership(tokens, vocab).to(t2d.device)):
        raise UsageError("t2d and d2t contradict each other: one of them is of another head")
