"""Answers in Spec-Bench's own form (github.com/hemingkx/Spec-Bench, evaluation/eval.py): a line of JSON a question.

{"question_id": 81, "category": "writing", "answer_id": "...", "model_id": "...", "tstamp": 1.7e9, "choices": [
    {"index": 0, "turns": ["..."], "decoding_steps": [41], "new_tokens": [128], "wall_time": [3.2],
     "accept_lengths": [1, 3, ...]}
]}

There is a choice for each run. All lists have a value a turn, but accept_lengths, which has one a pass of the target,
over all turns: the tokens that it gave, its own token (the bonus) among them. The prompt's own pass counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from outrider_proto.errors import UsageError
from outrider_proto.files import write_atomically


@dataclass(frozen=True, slots=True)
class SpecChoice:
    """The answers to all turns of a question in one run; times in seconds, the prompt's included."""

    index: int
    turns: tuple[str, ...]
    decoding_steps: tuple[int, ...]
    new_tokens: tuple[int, ...]
    wall_time: tuple[float, ...]
    accept_lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpecAnswer:
    """A line of an answer file."""

    question_id: int | str
    category: str
    answer_id: str
    model_id: str
    choices: tuple[SpecChoice, ...]
    tstamp: float


_ANSWER = TypeAdapter(SpecAnswer)


def read_answers(path: Path) -> list[SpecAnswer]:
    """Read a file of answers; keys beyond Spec-Bench's are passed over. Raises UsageError that names file and line."""
    try:
        # Not splitlines(): answers may hold U+2028, at which it splits as well.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text ({error})") from None
    found = [_answer(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"{path}: holds no answers")
    return found


def _answer(line: str, source: str) -> SpecAnswer:
    try:
        answer = _ANSWER.validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"])) or "line"
        raise UsageError(f"{source}: no answer in Spec-Bench's form: {place}: {fault['msg']}") from None
    for choice in answer.choices:
        if not sum(choice.wall_time) > 0:
            raise UsageError(f"{source}: wall_time={list(choice.wall_time)}: need more than 0 s")
    if not answer.choices:
        raise UsageError(f"{source}: choices=[]: need at least one")
    return answer


def write_answers(path: Path, answers: Iterable[SpecAnswer]) -> None:
    """Write a file of answers in the order of their ids, as Spec-Bench leaves its own."""
    write_atomically(path, "".join(line_of(answer) for answer in sorted(answers, key=_by_id)))


def line_of(answer: SpecAnswer) -> str:
    return json.dumps(asdict(answer), ensure_ascii=False) + "\n"


def _by_id(answer: SpecAnswer) -> tuple[bool, int | str]:
    return isinstance(answer.question_id, str), answer.question_id


def first_runs(answers: Sequence[SpecAnswer]) -> int:
    """Return the number of runs that every answer has."""
    return min(len(answer.choices) for answer in answers)
