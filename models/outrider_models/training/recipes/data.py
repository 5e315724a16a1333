"""The training stream: shards of samples, bucketed by length into batches.

Seed and shard number determine everything.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from outrider_models.core.tokenizer import PAD, Encoded, encode_samples, special_id
from outrider_models.corpus import FAMILIES, Sample, exercises, generate
from outrider_models.training.recipes.recipe import StreamSettings

GROUPS = (*FAMILIES, "copying")


@dataclass(frozen=True, slots=True)
class LabeledBatch:
    """Right-padded rows. `weights`, zero on padding, is the weight of the label at the same place."""

    inputs: Tensor  # [rows, length] int64
    labels: Tensor  # [rows, length] int64
    weights: Tensor  # [rows, length] float32
    groups: Tensor  # [rows] int64: index into GROUPS
    num_tokens: int  # without padding
    total_weight: float  # sum of weights; sums of losses are divided by it


def shard_batches(stream: StreamSettings, tokenizer: Tokenizer, shard: int) -> list[LabeledBatch]:
    """Build all batches of one shard, in training order."""
    samples = shard_samples(stream, shard)
    encoded = encode_samples(tokenizer, samples)
    order = sorted(range(len(samples)), key=lambda i: len(encoded[i].ids))
    pad = special_id(tokenizer, PAD)
    batches = [
        _padded([encoded[i] for i in rows], [samples[i].family for i in rows], stream.prompt_weight, pad)
        for rows in _rows(order, [len(e.ids) for e in encoded], stream.batch_tokens)
    ]
    random.Random(f"order/{stream.seed}/{shard}").shuffle(batches)
    return batches


def collate(tokenizer: Tokenizer, samples: Sequence[Sample], prompt_weight: float) -> LabeledBatch:
    """Build one batch of these samples."""
    families = [sample.family for sample in samples]
    return _padded(encode_samples(tokenizer, samples), families, prompt_weight, special_id(tokenizer, PAD))


def shard_samples(stream: StreamSettings, shard: int) -> list[Sample]:
    """Draw copying exercises in the share of that point of the run, and families by their weights."""
    # The progress of data is counted in shards, not in time: a resumed run must read what an undisturbed one reads.
    progress = shard * stream.shard_samples * _MEAN_TOKENS / stream.total_tokens
    # Streams with neighboring seeds must not share shards.
    seed = stream.seed * 1_000_003 + shard
    samples: list[Sample] = []
    for exercise in stream.exercises:
        samples += exercises(exercise.kind, seed, round(stream.shard_samples * exercise.share_at(progress)))
    rest, whole = stream.shard_samples - len(samples), sum(stream.family_weights.values())
    for family in FAMILIES:
        share = stream.family_weights.get(family, 0.0) / whole
        samples += generate(family, "train", seed, round(rest * share))
    return samples


_MEAN_TOKENS = 75  # per sample; only the fading of the exercises depends on it


def _rows(order: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    rows: list[int] = []
    for index in order:  # ascending length, so this one is the longest
        if rows and (len(rows) + 1) * lengths[index] > batch_tokens:
            yield rows
            rows = []
        rows.append(index)
    if rows:
        yield rows


def _padded(rows: list[Encoded], families: list[str], prompt_weight: float, pad: int) -> LabeledBatch:
    longest = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), longest), pad, dtype=np.int64)
    weights = np.zeros((len(rows), longest), dtype=np.float32)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = row.ids
        weights[i, : len(row.ids)] = np.where(row.is_reply, 1.0, prompt_weight)
    tokens = torch.from_numpy(ids)
    return LabeledBatch(
        inputs=tokens[:, :-1].contiguous(),
        labels=tokens[:, 1:].contiguous(),
        weights=torch.from_numpy(weights)[:, 1:].contiguous(),
        groups=torch.tensor([GROUPS.index(family) for family in families]),
        num_tokens=sum(len(row.ids) for row in rows),
        total_weight=float(weights[:, 1:].sum()),
    )
