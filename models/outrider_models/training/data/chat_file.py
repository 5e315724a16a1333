"""A file of chats as a source: passes over all of them in an order of the seed, some kept for validation."""

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeInt
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from outrider_models.training.core.rates import Length
from outrider_models.training.data.chats import read_chats
from outrider_models.training.data.texts import ChatTokens, reply_frequencies
from outrider_models.training.data.tokens import tokenize
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class ChatSettings:
    max_length: Annotated[int, Field(ge=2)]  # tokens of a chat; longer chats are cut
    held_out: NonNegativeInt  # chats kept for validation, at most a tenth of all
    seed: int
    limit: NonNegativeInt  # chats to train on, those that come first in a whole pass; 0: all
    questions: bool  # teach at the other turns' tokens too: for chats that the target wrote itself, questions included


class ChatSource:
    """Tokenized chats; a shard is a pass over them."""

    prompt_weight = 0.0

    def __init__(
        self,
        chats: Sequence[ChatTokens],
        held_out: Sequence[ChatTokens],
        num_dropped: int,
        length: Length,
        seed: int,
        limit: int = 0,
    ) -> None:
        # The vocabulary counts them all: heads of one target then draft the same tokens, whatever else limits them.
        self._counted, self.seed = chats, seed
        self.train = train = [chats[i] for i in sorted(_order(len(chats), seed, 0)[: limit or None])]
        self.unit = "reply tokens" if all(text.taught_from is None for text in train) else "tokens"
        self._held_out, self._num_dropped, self._batch = held_out, num_dropped, length.batch
        self.kinds = tuple(sorted({text.kind for text in train}))
        self.updates_an_epoch = -(-len(train) // length.batch)  # the last one may be smaller
        self.num_updates = max(1, math.ceil(length.epochs * self.updates_an_epoch))

    @classmethod
    def read(
        cls, path: Path, tokenizer: PreTrainedTokenizerBase, settings: ChatSettings, length: Length
    ) -> "ChatSource":
        """Tokenize the chats of a file and draw those to hold out, at most a tenth. Raises UsageError."""
        found = [tokenize(tokenizer, chat, settings.max_length) for chat in read_chats(path)]
        kept = [chat for chat in found if chat is not None]
        if not kept:
            raise UsageError(
                f"data: no reply among the first {settings.max_length} tokens of any of {len(found)} chats: "
                "raise data.max_length"
            )
        count = min(settings.held_out, len(kept) // 10)
        chosen = set(random.Random(f"held out/{settings.seed}").sample(range(len(kept)), count))
        train = [chat for i, chat in enumerate(kept) if i not in chosen]
        if settings.questions:
            first = _num_shared(train)
            train = [replace(chat, taught_from=first) for chat in train]
        return cls(
            train, [kept[i] for i in sorted(chosen)], len(found) - len(kept), length, settings.seed, settings.limit
        )

    def updates(self, shard: int) -> list[list[ChatTokens]]:
        order = _order(len(self.train), self.seed, shard)
        # Rows of about the same length share a pass, so that little of it is padding.
        return [
            sorted((self.train[i] for i in order[first : first + self._batch]), key=lambda chat: -len(chat.ids))
            for first in range(0, len(order), self._batch)
        ]

    def num_tokens(self, texts: Sequence[ChatTokens]) -> int:
        return sum(text.num_labels for text in texts)

    def progress(self, update: int, tokens: int) -> float:
        return update / self.num_updates

    def frequencies(self, vocab: int) -> Tensor:
        return reply_frequencies(self._counted, vocab)

    def held_out_prompts(self) -> list[list[int]]:
        return [chat.prompt for chat in self._held_out]

    def __str__(self) -> str:
        dropped = f", {self._num_dropped} left out (no reply within data.max_length)" if self._num_dropped else ""
        warning = "" if self._held_out else ", so no tau is measured"
        return (
            f"{self.num_tokens(self.train):,} {self.unit} of {len(self.train):,} chats, "
            f"{len(self._held_out)} held out{dropped}{warning}"
        )


def _order(count: int, seed: int, shard: int) -> list[int]:
    """Return the order of chats in a pass over so many."""
    order = list(range(count))
    random.Random(f"chats/{seed}/{shard}").shuffle(order)
    return order


def _num_shared(chats: Sequence[ChatTokens]) -> int:
    """Tokens that all chats begin with, such as a template's system prompt; at least the first, which none predicts."""
    shared = os.path.commonprefix([chat.ids.tobytes() for chat in chats])  # noqa: RUF071  # byte by byte
    return max(1, len(shared) // chats[0].ids.itemsize) if len(chats) > 1 else 1
