"""The questions of the demo: from a file, or drawn from the corpus of the embedded target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider_client import PromptMessage
from outrider_models import FAMILIES, held_out, read_questions


@dataclass(frozen=True, slots=True)
class Question:
    """A question with what precedes it, and a word for what it is about."""

    subject: str
    text: str
    messages: tuple[PromptMessage, ...]


def questions_of(file: Path | None, count: int, seed: int) -> list[Question]:
    """Read the first questions of a file, without later turns; None draws held-out prompts of the embedded target."""
    if file is not None:
        return [
            Question(each.category, each.turns[0], (PromptMessage(role="user", content=each.turns[0]),))
            for each in read_questions(file)[:count]
        ]
    drawn = [held_out(family, -(-count // len(FAMILIES)), seed) for family in FAMILIES]
    return [
        Question(
            sample.family,
            sample.messages[-1].content,
            tuple(PromptMessage(role=each.role, content=each.content) for each in sample.messages),
        )
        for turn in zip(*drawn, strict=True)
        for sample in turn
    ][:count]
