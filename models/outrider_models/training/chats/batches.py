"""Distribution of chats over updates and processes, determined by a seed alone."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outrider_models.training.chats.tokens import ChatTokens
from outrider_models.training.core.interfaces import Batch


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """The share of one process in one update."""

    # As many as in every other process, filled up with None: a missing forward pass would leave the others waiting.
    parts: list[list[ChatTokens | None]]
    num_labels: int  # reply tokens of the whole update, over all processes


_MIN_LENGTH = 32  # tokens of a batch without chats: enough for drafters that look several tokens ahead


def updates_an_epoch(num_chats: int, batch: int) -> int:
    """Return the number of updates per epoch; the last one may be smaller."""
    return -(-num_chats // batch)


def epoch_updates(
    chats: Sequence[ChatTokens], batch: int, part: int, seed: int, epoch: int, process: int, processes: int
) -> Iterator[Update]:
    """Yield one process's updates of an epoch: `batch` chats each, sorted by length, in parts of `part` rows."""
    order = list(range(len(chats)))
    random.Random(f"chats/{seed}/{epoch}").shuffle(order)
    for first in range(0, len(order), batch):
        # Rows of about the same length share a part, so that little of it is padding.
        chosen = sorted((chats[i] for i in order[first : first + batch]), key=lambda chat: -len(chat.ids))
        rows: list[ChatTokens | None] = [*chosen]
        rows += [None] * (-len(rows) % (part * processes))
        parts = [rows[i : i + part] for i in range(0, len(rows), part)]
        yield Update(parts[process::processes], sum(chat.num_labels for chat in chosen))


def make_batch(part: Sequence[ChatTokens | None], device: torch.device) -> Batch:
    """Pad chats on the right; a missing chat is a row of zeros that is masked out."""
    longest = max((len(chat.ids) for chat in part if chat is not None), default=_MIN_LENGTH)
    ids = np.zeros((len(part), longest), np.int64)
    is_reply = np.zeros((len(part), longest), bool)
    for row, chat in enumerate(part):
        if chat is not None:
            ids[row, : len(chat.ids)], is_reply[row, : len(chat.ids)] = chat.ids, chat.is_reply
    tokens, counts = torch.from_numpy(ids).to(device), torch.from_numpy(is_reply).to(device)
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), counts[:, 1:].contiguous())


def reply_frequencies(chats: Sequence[ChatTokens], vocab: int) -> Tensor:
    """Count each token [V] int64 in replies."""
    counts = np.zeros(vocab, np.int64)
    for chat in chats:
        counts += np.bincount(chat.ids[chat.is_reply], minlength=vocab)
    return torch.from_numpy(counts)
