"""Choose a draft vocabulary from a target's own answers, and measure how much of other answers it covers.

As VocabTrim (arXiv 2506.22694): the most frequent tokens of text that the target wrote, rather than of any text.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from outrider_drafters.checkpoints.target_weights import eos_token_ids, resolve_dir, target_sizes
from outrider_drafters.readers.config import read_config
from outrider_models.training.core.interfaces import most_frequent
from outrider_models.training.data.chats import read_chats
from outrider_models.training.data.texts import ChatTokens, reply_frequencies
from outrider_models.training.data.tokens import load_chat_tokenizer, tokenize
from outrider_proto.errors import UsageError

ALL_KINDS = "all"
_HELD_OUT_STEP = 20  # every chat of this number is held out where no file of them is given
_WHOLE = 2**31 - 1  # tokens of a chat to keep


@dataclass(frozen=True, slots=True)
class KindCoverage:
    """Held-out replies of one kind: their tokens, and the share of them in the vocabulary of every size."""

    kind: str
    num_tokens: int
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DraftVocabReport:
    """A draft vocabulary, the most frequent token first, and its coverage for several sizes, `size` among them."""

    tokens: tuple[int, ...]
    num_chosen_from: int  # reply tokens that were counted
    sizes: tuple[int, ...]
    kinds: tuple[KindCoverage, ...]


def choose_draft_vocab(target: str | Path, data: Path, held_out: Path | None, size: int | None) -> DraftVocabReport:
    """Take the `size` most frequent tokens of the replies in `data`, the target's end tokens always among them.

    `size` None: a sixth of the target's vocabulary. `held_out`: chats to measure coverage on; None: every twentieth of
    `data`, which is then not counted. Raises UsageError.
    """
    directory = resolve_dir(target)
    vocab, ends = target_sizes(directory).vocab, eos_token_ids(directory, read_config(directory))
    size = vocab // 6 if size is None else size
    if not max(1, len(ends)) <= size <= vocab:
        raise UsageError(f"size={size}: need {max(1, len(ends))} to {vocab}, the target's vocabulary")
    tokenizer = load_chat_tokenizer(directory)
    chosen_from, measured_on = _read(tokenizer, data), [] if held_out is None else _read(tokenizer, held_out)
    if held_out is None:
        measured_on = chosen_from[::_HELD_OUT_STEP]
        del chosen_from[::_HELD_OUT_STEP]
    if not chosen_from or not measured_on:
        raise UsageError(f"{data}: {len(chosen_from)} chats to count and {len(measured_on)} to measure on: need more")
    counts = reply_frequencies(chosen_from, vocab)
    num_counted = int(counts.sum())
    counts[list(ends)] = num_counted + 1  # whatever the size: an answer must be able to end
    # Of tokens that never occurred the lower ids come first: in BPE they are the earlier, more frequent merges.
    order = most_frequent(counts, vocab)
    sizes = tuple(sorted({min(vocab, max(1, size * factor // 4)) for factor in (1, 2, 4, 8, 16)}))
    return DraftVocabReport(tuple(order[:size].tolist()), num_counted, sizes, _coverage(order, measured_on, sizes))


def _read(tokenizer: PreTrainedTokenizerBase, path: Path) -> list[ChatTokens]:
    chats = [tokenize(tokenizer, chat, _WHOLE) for chat in read_chats(path)]
    return [chat for chat in chats if chat is not None]


def _coverage(order: Tensor, chats: Sequence[ChatTokens], sizes: Sequence[int]) -> tuple[KindCoverage, ...]:
    vocab = len(order)
    groups: dict[str, list[ChatTokens]] = defaultdict(list)
    for chat in chats:
        groups[chat.kind or "unnamed"].append(chat)
    by_kind = {ALL_KINDS: list(chats), **dict(sorted(groups.items()))}
    found = []
    for kind, group in by_kind.items():
        counts = reply_frequencies(group, vocab)[order]
        total = int(counts.sum())
        found.append(KindCoverage(kind, total, tuple(int(counts[:size].sum()) / total for size in sizes)))
    return tuple(found)
