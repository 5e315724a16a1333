"""Held-out prompts of the embedded corpus: token ids, and the sample that judges an answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
WARM_UP_TOKENS = 8
# Prompts are lengthened with other questions than those asked: a session would remember its own.
_FIRST_PREFIX_SEED = SEED + 2


@dataclass(frozen=True, slots=True)
class Question:
    """A sample of the corpus and its prompt's token ids."""

    sample: Sample
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskedPrompts:
    """The prompts, how often each is asked, and the seed of the order of the ways."""

    asked: Sequence[Question]
    warm_up: Question
    repetitions: int = 1
    seed: int = 1

    def __len__(self) -> int:
        return len(self.asked) * self.repetitions

    def order(self, ways: Iterable[str]) -> Iterator[tuple[int, str]]:
        """Yield the prompt's place and the way of every answer: all ways answer a prompt before the next one comes."""
        names = list(ways)
        for run in range(self.repetitions):
            for place in range(len(self.asked)):
                for name in random.Random(f"{self.seed}/{run}/{place}").sample(names, len(names)):
                    yield place, name

    def by_repetition(self, values: Sequence[float]) -> list[list[float]]:
        """Split a way's values, one per answer in order, into rows of one repetition each."""
        count = len(self.asked)
        return [list(values[first : first + count]) for first in range(0, len(values), count)]


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


def by_group(asked: Sequence[Question]) -> dict[str, list[int]]:
    """Group the indices of the questions by TEXT_GROUPS; a group without questions is left out."""
    families = by_family(asked)
    groups = {name: [n for family in some for n in families.get(family, ())] for name, some in TEXT_GROUPS.items()}
    return {name: numbers for name, numbers in groups.items() if numbers}


def warm_up_question(models: LocalModels, family: Family = FAMILIES[0]) -> Question:
    """Return a question of another seed than those asked, to be answered before anything is timed."""
    return questions(models, lambda one: int(one == family), SEED + 1)[0]


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
