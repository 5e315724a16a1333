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
        return cls._carrying(logits, drafted, tokens, normalized)

    @property
    def as_rows(self) -> DraftLogits:
        """Logits [V] as one row [1, V]."""
        return self._carrying(self.unsqueeze(0), self.drafted.unsqueeze(0), self.tokens, self.normalized)

    @classmethod
    def _carrying(cls, logits: Tensor, drafted: Tensor, tokens: Tensor, normalized: bool) -> DraftLogits:
        made = logits.as_subclass(cls)
        made.drafted, made.tokens, made.normalized = drafted, tokens, normalized
        return made


def split_logits(logits: Tensor, sizes: list[int]) -> list[Tensor]:
    """Split rows of logits [n, V] as torch's split does; the parts of DraftLogits are DraftLogits."""
    parts = list(torch.split(logits, sizes))
    if not isinstance(logits, DraftLogits):
        return parts
    made = [part.as_subclass(DraftLogits) for part in parts]
    for part, drafted in zip(made, torch.split(logits.drafted, sizes), strict=True):
        part.drafted, part.tokens, part.normalized = drafted, logits.tokens, logits.normalized
    return list(made)


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

    Row i stands for token stored[i]; None: for token i. `wanted` None: all. Wanted tokens without a row are left out.
    Raises UsageError if none is left.
    """
    if wanted is None:
        return weight, stored
    rows = (wanted < len(weight)).nonzero()[:, 0] if stored is None else torch.isin(stored, wanted).nonzero()[:, 0]
    rows = wanted[rows] if stored is None else rows
    if not len(rows):
        raise UsageError("draft vocabulary: the head has no row for any of its tokens: it is of another target")
    return weight[rows], rows if stored is None else stored[rows]


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


def over_target_vocabulary(logits: Tensor, tokens: Tensor | None, vocab: int) -> Tensor:
    """Scatter logits [..., Vd] to [..., V], -inf for tokens that cannot be drafted; `tokens` None: Vd is V already."""
    # -inf keeps log-softmax over V equal to that over Vd, so that no other code needs the map.
    if tokens is None:
        return logits
    return DraftLogits.of(logits, tokens, vocab)


def check_membership(t2d: Tensor, tokens: Tensor, vocab: int) -> None:
    """Raise UsageError unless t2d [V] marks exactly the draft ids' target ids."""
    if t2d.shape != (vocab,):
        raise UsageError(f"t2d has shape {list(t2d.shape)}: need [{vocab}]")
    if not torch.equal(t2d.to(torch.bool), membership(tokens, vocab).to(t2d.device)):
        raise UsageError("t2d and d2t contradict each other: one of them is of another head")
