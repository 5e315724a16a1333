"""Held-out prompts of the embedded corpus: token ids, and the sample that judges an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from outrider_client.models.local_models import LocalModels
from outrider_models.corpus import FAMILIES, Family, Sample, SampleMessage, generate

# Text whose tau is high because it is nearly deterministic for the embedded pair, and the rest: figures of the one must
# not stand for the other.
TEXT_GROUPS: Mapping[str, tuple[Family, ...]] = {
    "easy": ("code", "math"),
    "hard": ("chat", "summary", "qa", "instruct"),
}
SEED = 2026  # of the test split, fixed so that results can be compared
# Prompts are lengthened with other questions than those asked: a session would remember its own.
_FIRST_PREFIX_SEED = SEED + 2


@dataclass(frozen=True, slots=True)
class Question:
    """A sample of the corpus and its prompt's token ids."""

    sample: Sample
    prompt: tuple[int, ...]


def questions(models: LocalModels, count: Callable[[Family], int] | int, seed: int = SEED) -> list[Question]:
    """Return `count` questions per family, from compositions that are never trained on.

    `count` may depend on the family.
    """
    of_family = count if callable(count) else lambda family: count
    samples = [sample for family in FAMILIES for sample in generate(family, "test", seed, of_family(family))]
    return [Question(sample, _encode(models, sample.messages)) for sample in samples]


def by_family(asked: Sequence[Question]) -> dict[str, list[int]]:
    """Group the indices of the questions by family."""
    groups: dict[str, list[int]] = {}
    for number, question in enumerate(asked):
        groups.setdefault(question.sample.family, []).append(number)
    return groups


def spread_questions(models: LocalModels, count: int) -> list[Question]:
    """Return `count` held-out questions that take turns between the families."""
    asked = questions(models, -(-count // len(FAMILIES)))
    each = len(asked) // len(FAMILIES)
    return [asked[family * each + i] for i in range(each) for family in range(len(FAMILIES))][:count]


def lengthened(asked: Sequence[Question], models: LocalModels, least: int) -> list[Question]:
    """Put other questions and their answers before each one, until its prompt has at least `least` tokens."""
    return [_lengthened(question, _FIRST_PREFIX_SEED + number, models, least) for number, question in enumerate(asked)]


def _lengthened(question: Question, seed: int, models: LocalModels, least: int) -> Question:
    before = generate(cast(Family, question.sample.family), "test", seed, least)
    messages, prompt = question.sample.messages, question.prompt
    while len(prompt) < least:
        messages = (*next(before).conversation(), *messages)
        prompt = _encode(models, messages)
    return Question(replace(question.sample, messages=messages), prompt)


def _encode(models: LocalModels, messages: Sequence[SampleMessage]) -> tuple[int, ...]:
    as_dicts = [message.as_dict() for message in messages]
    return tuple(models.encode(as_dicts, raw=False))  # type: ignore[arg-type] # a TypedDict is no dict to mypy
