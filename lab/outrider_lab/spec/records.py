"""What `outrider-lab spec` keeps of every answer, and the answer files made of it in Spec-Bench's form.

The records have what that form has no place for: token ids, times to the first token, sizes of prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outrider_lab.spec.answer_file import SpecAnswer, SpecChoice


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn's answer: new tokens, the tokens of each of the target's passes, and seconds with the prompt."""

    text: str
    prompt_tokens: int
    token_ids: tuple[int, ...]
    tokens_by_pass: tuple[int, ...]
    wall_s: float
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """A way's answers to all turns of a question in one run."""

    run: int
    question_id: int | str
    category: str
    way: str
    answer_id: str
    tstamp: float
    turns: tuple[TurnRecord, ...]

    @property
    def name(self) -> str:
        return record_name(self.run, self.question_id, self.way)

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        return tuple(turn.token_ids for turn in self.turns)

    @property
    def choice(self) -> SpecChoice:
        return SpecChoice(
            self.run,
            tuple(turn.text for turn in self.turns),
            tuple(len(turn.tokens_by_pass) for turn in self.turns),
            tuple(len(turn.token_ids) for turn in self.turns),
            tuple(turn.wall_s for turn in self.turns),
            tuple(count for turn in self.turns for count in turn.tokens_by_pass),
        )


def record_name(run: int, question_id: int | str, way: str) -> str:
    return f"run {run}, question {question_id!r}, {way}"


def answers_of(records: Iterable[QuestionRecord], model: str) -> Mapping[str, list[SpecAnswer]]:
    """Return the answers of each way, all runs of a question in one."""
    by_way: dict[str, dict[int | str, list[QuestionRecord]]] = {}
    for record in sorted(records, key=lambda record: record.run):
        by_way.setdefault(record.way, {}).setdefault(record.question_id, []).append(record)
    return {way: [_answer(runs, model) for runs in by_question.values()] for way, by_question in by_way.items()}


def _answer(runs: list[QuestionRecord], model: str) -> SpecAnswer:
    last = runs[-1]
    choices = tuple(record.choice for record in runs)
    return SpecAnswer(last.question_id, last.category, last.answer_id, f"{model}-{last.way}", choices, last.tstamp)
