"""What `outrider-bench spec` keeps: every answer a line, written as it comes, and the answer files made from them.

    DIR/records.jsonl   {"settings": {...}, "made_by": {...}}, {"answer": {...}} for each, {"complete": true}
    DIR/WAY.jsonl       the answers of a way in Spec-Bench's form: a line is added for each, and at the end of the runs
                        or of the program the file is sorted, with one line for all runs of a question

The records have what Spec-Bench's form has no place for: token ids, times to the first token, sizes of prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from outrider_bench.harness.journal import COMPLETE, LineWriter, kept_lines, no_record
from outrider_bench.spec.answer_file import SpecAnswer, SpecChoice, line_of, write_answers
from outrider_proto.errors import UsageError

RECORDS = "records.jsonl"
_COMMAND = "spec"
_Slot = tuple[int, int | str, str]  # run, question_id, way


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
    def slot(self) -> _Slot:
        return self.run, self.question_id, self.way

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


_RECORD = TypeAdapter(QuestionRecord)


class Journal:
    """The records of a directory; `taken` are all so far, by run, question and way."""

    def __init__(self, directory: Path, model: str, lines: LineWriter, taken: dict[_Slot, QuestionRecord]) -> None:
        self._directory, self._model, self._lines = directory, model, lines
        self.taken = taken

    def __contains__(self, slot: _Slot) -> bool:
        return slot in self.taken

    def take(self, record: QuestionRecord) -> None:
        self.taken[record.slot] = record
        self._lines.write({"answer": _RECORD.dump_python(record, mode="json")})
        with (self._directory / f"{record.way}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line_of(self._answer([record])))

    def write_files(self) -> None:
        """Write the answer files anew: sorted, the runs of a question on one line."""
        by_way: dict[str, dict[int | str, list[QuestionRecord]]] = {}
        for record in sorted(self.taken.values(), key=lambda record: record.run):
            by_way.setdefault(record.way, {}).setdefault(record.question_id, []).append(record)
        for way, by_question in by_way.items():
            write_answers(self._directory / f"{way}.jsonl", map(self._answer, by_question.values()))

    def complete(self) -> None:
        """Note that nothing is missing, so that the next run may replace the directory's files."""
        self._lines.write(COMPLETE)

    def _answer(self, runs: list[QuestionRecord]) -> SpecAnswer:
        last = runs[-1]
        choices = tuple(record.choice for record in runs)
        return SpecAnswer(
            last.question_id, last.category, last.answer_id, f"{self._model}-{last.way}", choices, last.tstamp
        )


@contextmanager
def open_journal(
    directory: Path,
    model: str,
    settings: Mapping[str, Any],  # Any: JSON
    *,
    resume: bool,
) -> Iterator[Journal]:
    """Yield the directory's journal, and write the answer files when the context ends, however it ends.

    Raises UsageError for records of other settings, unfinished ones without `resume`, and a directory not writable.
    """
    path = directory / RECORDS
    try:
        directory.mkdir(parents=True, exist_ok=True)
        taken = _kept(path, settings, resume=resume) if path.exists() else {}
        with path.open("a" if taken else "w", encoding="utf-8") as file:
            lines = LineWriter(file)
            journal = Journal(directory, model, lines, taken)
            if not taken:
                lines.begin(settings)
            # A killed run has left its lines unsorted.
            journal.write_files()
            try:
                yield journal
            finally:
                journal.write_files()
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or directory}: {error.strerror}") from error


def _kept(path: Path, settings: Mapping[str, Any], *, resume: bool) -> dict[_Slot, QuestionRecord]:  # Any: JSON
    """Return the records to keep: those of an unfinished run with the same settings."""
    lines = kept_lines(path, settings, _COMMAND, resume=resume, other="directory")
    found = [line["answer"] for line in lines if "answer" in line]
    if not resume:
        _remove_answers(path.parent, {record["way"] for record in found})
        return {}
    try:
        records = [_RECORD.validate_python(record) for record in found]
    except ValidationError:
        raise no_record(str(path), _COMMAND) from None
    return {record.slot: record for record in records}


def _remove_answers(directory: Path, ways: set[str]) -> None:
    """Remove the files of the run before: a way that is not asked now must not look like one of this run."""
    for way in ways:
        (directory / f"{way}.jsonl").unlink(missing_ok=True)
