"""Which chats make an update, and which of them which process reads, from a seed alone."""

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
    """One update's share of one process: as many parts as every other process has."""

    parts: list[list[ChatTokens | None]]  # None: a row that teaches nothing, where chats do not divide
    num_labels: int  # reply tokens of the whole update, of all processes


_LEAST = 32  # tokens of a row that stands for no chat: enough for what looks several ahead


def updates_an_epoch(num_chats: int, batch: int) -> int:
    """The last one may be smaller."""
    return -(-num_chats // batch)


def epoch_updates(
    chats: Sequence[ChatTokens], batch: int, part: int, seed: int, epoch: int, process: int, processes: int
) -> Iterator[Update]:
    """The updates of an epoch: `batch` chats each, in parts of `part` rows, of like lengths within an update."""
    order = list(range(len(chats)))
    random.Random(f"chats/{seed}/{epoch}").shuffle(order)
    for first in range(0, len(order), batch):
        chosen = sorted((chats[i] for i in order[first : first + batch]), key=lambda chat: -len(chat.ids))
        rows: list[ChatTokens | None] = [*chosen]
        rows += [None] * (-len(rows) % (part * processes))
        parts = [rows[i : i + part] for i in range(0, len(rows), part)]
        yield Update(parts[process::processes], sum(chat.num_labels for chat in chosen))


def make_batch(part: Sequence[ChatTokens | None], device: torch.device) -> Batch:
    """Right-padded; a missing chat is a row of zeros that teaches nothing."""
    longest = max((len(chat.ids) for chat in part if chat is not None), default=_LEAST)
    ids = np.zeros((len(part), longest), np.int64)
    is_reply = np.zeros((len(part), longest), bool)
    for row, chat in enumerate(part):
        if chat is not None:
            ids[row, : len(chat.ids)], is_reply[row, : len(chat.ids)] = chat.ids, chat.is_reply
    tokens, counts = torch.from_numpy(ids).to(device), torch.from_numpy(is_reply).to(device)
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), counts[:, 1:].contiguous())


def reply_frequencies(chats: Sequence[ChatTokens], vocab: int) -> Tensor:
    """How often each token [V] int64 stands in replies."""
    counts = np.zeros(vocab, np.int64)
    for chat in chats:
        counts += np.bincount(chat.ids[chat.is_reply], minlength=vocab)
    return torch.from_numpy(counts)
