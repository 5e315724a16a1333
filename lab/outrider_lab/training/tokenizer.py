"""The embedded tokenizer: byte-level BPE, single digits, five special tokens, and a chat template.

<|bos|><|user|>Hello<|assistant|>Hi!<|eos|><|user|>...
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from outrider_lab.corpus import exercises, generate
from outrider_models.core.held_out import FAMILIES, Sample, SampleMessage

BOS, EOS, PAD, USER, ASSISTANT = SPECIALS = ("<|bos|>", "<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}{{ eos_token }}"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation as ids; `is_reply[i]`: token i belongs to an assistant turn, its end included."""

    ids: tuple[int, ...]
    is_reply: tuple[bool, ...]


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of `vocab_size` entries, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def corpus_texts(seed: int, per_family: int) -> Iterator[str]:
    """Yield the tokenizer's training text: the train split of every family and some copying exercises."""
    for family in FAMILIES:
        for sample in generate(family, "train", seed, per_family):
            yield from (message.content for message in sample.conversation())
    for sample in exercises("short", seed, per_family // 4):
        yield from (message.content for message in sample.conversation())


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json with the chat template, for `AutoTokenizer`."""
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # unannotated in transformers
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=max_length,
        # True would drop spaces before punctuation when decoding.
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory, save_jinja_files=False)


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a special token. Raises ValueError for a tokenizer that was not made here."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token}")
    return found


def encode_samples(tokenizer: Tokenizer, samples: Sequence[Sample]) -> list[Encoded]:
    """Encode whole conversations as the chat template would write them."""
    contents = [message.content for sample in samples for message in sample.conversation()]
    # One batch for all messages; its results are handed out in the same order below.
    encodings = iter(tokenizer.encode_batch_fast(contents, add_special_tokens=False))
    return [_join(tokenizer, sample.conversation(), (next(encodings).ids for _ in sample.conversation()))
            for sample in samples]  # fmt: skip


def _join(tokenizer: Tokenizer, messages: Sequence[SampleMessage], parts: Iterable[list[int]]) -> Encoded:
    ids, is_reply = [special_id(tokenizer, BOS)], [False]
    for message, part in zip(messages, parts, strict=True):
        reply = message.role == "assistant"
        turn = [*part, special_id(tokenizer, EOS)] if reply else part
        ids += [special_id(tokenizer, ASSISTANT if reply else USER), *turn]
        is_reply += [False, *(reply for _ in turn)]
    return Encoded(tuple(ids), tuple(is_reply))
