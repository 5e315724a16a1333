"""Texts as tokens, the sources they come from, and the batches that are made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_models.training.core.interfaces import PADDING, Batch


@dataclass(frozen=True, slots=True, eq=False)
class ChatTokens:
    ids: NDArray[np.int32]
    is_reply: NDArray[np.bool_]  # of the assistant's turns, their ends included
    kind: str = ""  # of text, as its source calls it
    taught_from: int | None = None  # all tokens from here to the last reply's end are taught; None: those of replies
    place: int = 0  # its first row among served features

    @property
    def is_taught(self) -> NDArray[np.bool_]:
        if self.taught_from is None:
            return self.is_reply
        places = np.arange(len(self.ids))
        last = int(places[self.is_reply].max(initial=-1))
        return np.logical_and(places >= self.taught_from, places <= last)

    @property
    def prompt(self) -> list[int]:
        """Tokens before the first reply."""
        return cast(list[int], self.ids[: int(self.is_reply.argmax())].tolist())

    @property
    def num_labels(self) -> int:
        """Number of tokens that are taught and that a preceding token predicts."""
        return int(self.is_taught[1:].sum())


class TextSource(Protocol):
    """The texts of a run, in shards: passes over a file, or parts of an endless corpus. A seed determines them."""

    seed: int
    kinds: tuple[str, ...]  # of all its texts
    prompt_weight: float  # of a label outside replies, where one inside weighs 1
    unit: str  # what its tokens are called

    def updates(self, shard: int) -> Sequence[Sequence[ChatTokens]]:
        """Return the texts of each update of a shard, in order."""

    def num_tokens(self, texts: Sequence[ChatTokens]) -> int:
        """Count tokens as the source's progress does."""

    def progress(self, update: int, tokens: int) -> float:
        """Return the share of the run that is done, 1 at its end."""

    def frequencies(self, vocab: int) -> Tensor:
        """Count each token [V] int64 in replies."""

    def held_out_prompts(self) -> list[list[int]]:
        """Return prompts that are not trained on."""


def make_batch(texts: Sequence[ChatTokens], device: torch.device) -> Batch:
    """Pad texts on the right."""
    longest = max(len(text.ids) for text in texts)
    ids = np.full((len(texts), longest), PADDING, np.int64)
    is_taught = np.zeros((len(texts), longest), bool)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)], is_taught[row, : len(text.ids)] = text.ids, text.is_taught
    labels, counts = (torch.from_numpy(part[:, 1:].copy()).to(device) for part in (ids, is_taught))
    places = tuple(text.place for text in texts)
    return Batch(torch.from_numpy(ids[:, :-1].clip(min=0)).to(device), labels, counts, places)


def reply_frequencies(texts: Sequence[ChatTokens], vocab: int) -> Tensor:
    """Count each token [V] int64 in replies."""
    counts = np.zeros(vocab, np.int64)
    for text in texts:
        counts += np.bincount(text.ids[text.is_reply], minlength=vocab)
    return torch.from_numpy(counts)
