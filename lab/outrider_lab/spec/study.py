"""The study behind `outrider-lab spec`: every answer is a row; the answer files are written at the end of a run.

DIR/WAY.jsonl       the answers of a way in Spec-Bench's form, with one line for all runs of a question
DIR/summary.json    the report; beside it are the rows of an interrupted run
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from outrider_bench.core.progress import Step
from outrider_bench.core.tables import ResultTable
from outrider_bench.harness.study import Measured, Study
from outrider_client.models.tokenizer import TargetTokenizer
from outrider_lab.spec.answer_file import SpecAnswer, read_answers, write_answers
from outrider_lab.spec.options import SUMMARY, SpecOptions
from outrider_lab.spec.plan import BASELINE
from outrider_lab.spec.records import QuestionRecord, answers_of
from outrider_lab.spec.run import Asked, answer_all, largest_gaps, load_asked
from outrider_lab.spec.speed import CountTokens
from outrider_lab.spec.summary import (
    SpecSummary,
    accepted_table,
    new_tokens_table,
    speedup_table,
    summarize,
    tokens_table,
)
from outrider_proto.errors import UsageError
from outrider_proto.files import read_json


class SpecStudy(Study[SpecOptions, QuestionRecord, SpecSummary]):
    """Ways of answering, which take turns at every question."""

    @cached_property
    def asked(self) -> Asked:
        return load_asked(self.options.plan)

    async def run(self, taken: Mapping[str, QuestionRecord], step: Step) -> Measured[QuestionRecord]:
        if self.options.summarize is not None:
            return
        plan = self.options.plan
        try:
            records = answer_all(plan, self.asked, taken, step)
            async with aclosing(records):
                async for record in records:
                    yield record.name, record
        finally:
            if self.options.out is not None and taken:
                _write_files(self.options.out, answers_of(taken.values(), plan.target.name))

    def report(self, rows: Mapping[str, QuestionRecord]) -> SpecSummary:
        options = self.options
        tokenizer = TargetTokenizer(options.directory)

        def count_tokens(text: str) -> int:
            return len(tokenizer.encode(text))

        if options.summarize is not None:
            return _summary_of(options.summarize, count_tokens)
        plan, records = options.plan, list(rows.values())
        summary = summarize(
            answers_of(records, plan.target.name), count_tokens, records, largest_gaps(plan, self.asked, records)
        )
        return replace(
            summary,
            settings=plan.settings,
            left_out=tuple(self.asked.left_out),
            questions=len(self.asked.questions),
            ours=tuple(plan.clients),
        )

    @staticmethod
    def tables(report: SpecSummary) -> Iterable[ResultTable]:
        return (build(report) for build in (speedup_table, new_tokens_table, tokens_table, accepted_table))

    @staticmethod
    def notes(report: SpecSummary) -> Iterable[str]:
        if report.differing and not any(one.answers for one in report.differing.values()):
            yield "all answers are those of the plain loop"
        for way, one in report.differing.items():
            if one.answers and way not in report.exact_ways:
                yield f"{way}: {one.in_words}"

    @staticmethod
    def failures(report: SpecSummary) -> Iterable[str]:
        for way in report.exact_ways:
            if (one := report.differing[way]).answers:
                yield f"{way}: {one.in_words}"


def _write_files(directory: Path, answers: Mapping[str, list[SpecAnswer]]) -> None:
    """Write the answer files; those of ways of an earlier run go, which must not look like some of this one.

    Raises UsageError.
    """
    try:
        for way in _earlier_ways(directory) - answers.keys():
            (directory / f"{way}.jsonl").unlink(missing_ok=True)
        for way, of_way in answers.items():
            write_answers(directory / f"{way}.jsonl", of_way)
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or directory}: {error.strerror}") from error


def _earlier_ways(directory: Path) -> set[str]:
    try:
        return set(read_json(directory / SUMMARY)["ways"])
    except (UsageError, KeyError, TypeError):
        return set()


def _summary_of(directory: Path, count_tokens: CountTokens) -> SpecSummary:
    """Raises UsageError for files that hold no answers, and where there is no baseline."""
    answers = {path.stem: read_answers(path) for path in sorted(directory.glob("*.jsonl"))}
    if BASELINE not in answers:
        raise UsageError(f"{directory}: no {BASELINE}.jsonl, with which all others are compared")
    return summarize(answers, count_tokens)
