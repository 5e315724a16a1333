"""Held-out prompts of the embedded corpus, as token ids and with the means to judge an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider_client.models.local_models import LocalModels
from outrider_models.corpus import FAMILIES, Family, Sample, generate

SEED = 2026  # of the test split, fixed so that figures can be compared


@dataclass(frozen=True, slots=True)
class Question:
    """A sample of the corpus and its prompt's token ids."""

    sample: Sample
    prompt: tuple[int, ...]


def questions(models: LocalModels, count: Callable[[Family], int] | int, seed: int = SEED) -> list[Question]:
    """`count` questions of every family, or as many as it says for each, from compositions never trained on."""
    of_family = count if callable(count) else lambda family: count
    samples = [sample for family in FAMILIES for sample in generate(family, "test", seed, of_family(family))]
    return [Question(sample, _encode(models, sample)) for sample in samples]


def by_family(asked: Sequence[Question]) -> dict[str, list[int]]:
    """Numbers of the questions of every family."""
    groups: dict[str, list[int]] = {}
    for number, question in enumerate(asked):
        groups.setdefault(question.sample.family, []).append(number)
    return groups


def _encode(models: LocalModels, sample: Sample) -> tuple[int, ...]:
    messages = [{"role": m.role, "content": m.content} for m in sample.messages]
    return tuple(models.encode(messages, raw=False))  # type: ignore[arg-type] # a TypedDict is no dict to mypy
