"""The generated corpus as a source: shards of samples, bucketed by length. A seed determines everything."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import PositiveInt
from tokenizers import Tokenizer
from torch import Tensor

from outrider_lab.corpus import CorpusSample, exercises, generate
from outrider_lab.corpus.sample import EXERCISES
from outrider_lab.training.tokenizer import ASSISTANT, BOS, EOS, USER, encode_samples, special_id
from outrider_models.core.held_out import FAMILIES, Sample
from outrider_models.training.data.texts import ChatTokens, reply_frequencies
from outrider_proto.errors import UsageError

_MEAN_TOKENS = 75  # per sample; only the fading of the exercises depends on it
_PROMPTS = 2  # held-out ones per family


@dataclass(frozen=True, slots=True)
class Exercise:
    """Copying exercises in the training stream, from `begin` on, in a share that falls linearly to 0 at `end`."""

    kind: str
    share: float  # of samples
    begin: float  # share of the run, as all below
    end: float

    def __post_init__(self) -> None:
        if self.kind not in EXERCISES:
            raise UsageError(f"exercise {self.kind!r}: choose one of {', '.join(EXERCISES)}")
        if not (0 <= self.share < 1 and 0 <= self.begin < self.end):
            raise UsageError(f"{self}: need 0 <= share < 1 and 0 <= begin < end")

    def share_at(self, progress: float) -> float:
        if not self.begin <= progress < self.end:
            return 0.0
        return self.share * (self.end - progress) / (self.end - self.begin)


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """Settings of the training stream."""

    seed: int
    shard_samples: PositiveInt
    batch_tokens: PositiveInt
    total_tokens: PositiveInt
    prompt_weight: float
    family_weights: dict[str, float]
    exercises: tuple[Exercise, ...]

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.family_weights) - set(FAMILIES)):
            raise UsageError(f"family_weights: unknown families {', '.join(unknown)}; choose of {', '.join(FAMILIES)}")
        if not any(weight > 0 for weight in self.family_weights.values()):
            raise UsageError("family_weights: at least one must be above 0")


class CorpusSource:
    """An endless stream of samples; the run ends after `total_tokens`, those of prompts included."""

    kinds = (*FAMILIES, "copying")
    unit = "tokens"

    def __init__(self, settings: CorpusSettings, tokenizer: Tokenizer) -> None:
        self.seed, self.prompt_weight = settings.seed, settings.prompt_weight
        self._settings, self._tokenizer = settings, tokenizer

    def updates(self, shard: int) -> list[list[ChatTokens]]:
        texts = sorted(encoded(self._tokenizer, self._samples(shard)), key=lambda text: len(text.ids))
        updates = list(_batches(texts, self._settings.batch_tokens))
        random.Random(f"order/{self.seed}/{shard}").shuffle(updates)
        return updates

    def num_tokens(self, texts: Sequence[ChatTokens]) -> int:
        return sum(len(text.ids) for text in texts)

    def progress(self, update: int, tokens: int) -> float:
        return tokens / self._settings.total_tokens

    def frequencies(self, vocab: int) -> Tensor:
        """Count each token [V] int64 in the replies of the first shard."""
        return reply_frequencies(encoded(self._tokenizer, self._samples(0)), vocab)

    def held_out_prompts(self) -> list[list[int]]:
        return [prompt_ids(self._tokenizer, sample) for sample in held_out_samples(_PROMPTS)]

    def __str__(self) -> str:
        return f"{self._settings.total_tokens:,} tokens of the corpus"

    def _samples(self, shard: int) -> list[CorpusSample]:
        """Draw copying exercises in the share of that point of the run, and families by their weights."""
        settings = self._settings
        # The progress of data is counted in shards, not in time: a resumed run must read what an undisturbed one reads.
        progress = shard * settings.shard_samples * _MEAN_TOKENS / settings.total_tokens
        # Streams with neighboring seeds must not share shards.
        seed = settings.seed * 1_000_003 + shard
        samples: list[CorpusSample] = []
        for exercise in settings.exercises:
            samples += exercises(exercise.kind, seed, round(settings.shard_samples * exercise.share_at(progress)))
        rest, whole = settings.shard_samples - len(samples), sum(settings.family_weights.values())
        for family in FAMILIES:
            share = settings.family_weights.get(family, 0.0) / whole
            samples += generate(family, "train", seed, round(rest * share))
        return samples


def encoded(tokenizer: Tokenizer, samples: Sequence[Sample]) -> list[ChatTokens]:
    """Encode whole conversations."""
    return [
        ChatTokens(np.array(row.ids, np.int32), np.array(row.is_reply, bool), sample.family)
        for sample, row in zip(samples, encode_samples(tokenizer, samples), strict=True)
    ]


def held_out_samples(per_family: int, seed: int = 7_777) -> list[CorpusSample]:
    """Draw held-out samples of every family, and copying exercises of a seed that training never uses."""
    held_out = [sample for family in FAMILIES for sample in generate(family, "test", seed, per_family)]
    return [*held_out, *exercises("short", -seed, per_family)]


def prompt_ids(tokenizer: Tokenizer, sample: Sample) -> list[int]:
    """Encode the prompt as the chat template writes it, with the opening of the reply."""
    ids = [special_id(tokenizer, BOS)]
    for message in sample.messages:
        reply = message.role == "assistant"
        ids += [special_id(tokenizer, ASSISTANT if reply else USER), *tokenizer.encode(message.content).ids]
        ids += [special_id(tokenizer, EOS)] if reply else []
    return [*ids, special_id(tokenizer, ASSISTANT)]


def _batches(texts: Sequence[ChatTokens], batch_tokens: int) -> Iterator[list[ChatTokens]]:
    batch: list[ChatTokens] = []
    for text in texts:  # ascending length, so this one is the longest
        if batch and (len(batch) + 1) * len(text.ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch
