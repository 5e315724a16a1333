"""Questions asked late: after other questions of the corpus and their answers, so that the prompt is long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from outrider_bench.core.prompts import SEED, Question
from outrider_client.models.local_models import LocalModels
from outrider_models.corpus import Family, SampleMessage, generate

_FIRST_SEED = SEED + 2  # of what was asked before: other questions before each, or sessions would remember them


def lengthened(asked: Sequence[Question], models: LocalModels, least: int) -> list[Question]:
    """The same questions, with prompts of `least` tokens or some more."""
    return [_late(question, _FIRST_SEED + number, models, least) for number, question in enumerate(asked)]


def _late(question: Question, seed: int, models: LocalModels, least: int) -> Question:
    before = generate(cast(Family, question.sample.family), "test", seed, least)
    messages, prompt = question.sample.messages, question.prompt
    while len(prompt) < least:
        messages = (*next(before).conversation(), *messages)
        prompt = _encoded(messages, models)
    return Question(replace(question.sample, messages=messages), prompt)


def _encoded(messages: Sequence[SampleMessage], models: LocalModels) -> tuple[int, ...]:
    told = [message.as_dict() for message in messages]
    return tuple(models.encode(told, raw=False))  # type: ignore[arg-type] # a TypedDict is no dict to mypy
