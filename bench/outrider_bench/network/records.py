"""Records of a measurement: every answer a line of JSON, written as it comes, so that a measurement can be resumed.

    {"settings": {...}, "made_by": {...}}   what determines the figures, the same for all that is in the file
    {"case": {...}}                         a drafter over a link with a seed, and the variants that could be measured
    {"answer": {...}}                       one answer, whole: the report is computed from these lines
    {"complete": true}

A CSV file beside it has one row per answer, written when all variants have answered a prompt.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TextIO

from pydantic import TypeAdapter

from outrider_bench.core.prompts import TEXT_GROUPS
from outrider_bench.core.stats import mean, ratio
from outrider_bench.harness.journal import COMPLETE, LineWriter, kept_lines, no_record
from outrider_bench.network.link_endpoint import LinkTraffic
from outrider_bench.network.report import ScenarioSetting
from outrider_bench.network.timed_answer import AnswerSlot, TimedAnswer
from outrider_bench.network.variants import STREAM
from outrider_proto.errors import UsageError

JSONL, CSV = ".jsonl", ".csv"
Row = dict[str, Any]  # Any: numbers, texts and booleans
_Slot = tuple[int, int, str]  # run, place, way
_COMMAND = "network"
_TRAFFIC = tuple(field.name for field in fields(LinkTraffic))


@dataclass(frozen=True, slots=True)
class CaseKey:
    """What tells the cases of one measurement apart; run n of a case takes the link seed `seed + n`."""

    drafter: str
    profile: str
    seed: int

    def __str__(self) -> str:
        return f"{self.drafter} over {self.profile}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class CaseEntry:
    """A case's setting, the variants that answer, and the controls that cannot, with the reason."""

    key: CaseKey
    setting: ScenarioSetting
    variants: tuple[str, ...]
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AnswerEntry:
    """One answer; `pings_ms` were measured just before it."""

    key: CaseKey
    slot: AnswerSlot
    family: str
    prompt_tokens: int
    pings_ms: tuple[float, ...]
    answer: TimedAnswer


_CASE, _ANSWER = TypeAdapter(CaseEntry), TypeAdapter(AnswerEntry)


@dataclass(slots=True)
class Records:
    """All that was measured so far; new entries are appended to the files."""

    cases: dict[CaseKey, CaseEntry] = field(default_factory=dict)
    _answers: dict[CaseKey, dict[_Slot, AnswerEntry]] = field(default_factory=dict)
    _lines: LineWriter = field(default_factory=lambda: LineWriter(None))
    _table: TextIO | None = None
    is_complete: bool = False

    def __len__(self) -> int:
        return sum(map(len, self._answers.values()))

    def append_to(self, lines: TextIO | None, table: TextIO | None, settings: Mapping[str, Any]) -> None:  # Any: JSON
        """Write what comes to these files, and what is there already to the table."""
        self._lines, self._table = LineWriter(lines), table
        if not self.cases:
            self._lines.begin(settings)
        for key in self.cases:
            self._write_rows(self.rows(key))

    def begin(self, case: CaseEntry) -> None:
        self._keep_case(case)
        self._lines.write({"case": _CASE.dump_python(case, mode="json")})

    def take(self, entry: AnswerEntry) -> None:
        self._keep_answer(entry)
        self._lines.write({"answer": _ANSWER.dump_python(entry, mode="json")})
        group = self._at(entry.key, entry.slot.run, entry.slot.place)
        if self._answered(entry.key, group):
            self._write_rows(answer_rows(group, in_corpus=self._in_corpus(entry.key)))

    def complete(self) -> None:
        """Note that nothing is missing, so that the next measurement may replace the file."""
        if not self.is_complete:
            self._lines.write(COMPLETE)
            self.is_complete = True

    def has(self, key: CaseKey, slot: AnswerSlot) -> bool:
        return (slot.run, slot.place, slot.way) in self._answers.get(key, {})

    def run_of(self, key: CaseKey, run: int) -> list[AnswerEntry]:
        """Return the answers of a run, by prompt and within a prompt in their order."""
        entries = [entry for entry in self._answers.get(key, {}).values() if entry.slot.run == run]
        return sorted(entries, key=lambda entry: (entry.slot.place, entry.slot.order))

    def rows(self, key: CaseKey) -> list[Row]:
        """Return a row per answer of a case, as in the CSV file; of prompts that all variants have answered."""
        runs = sorted({run for run, _, _ in self._answers.get(key, {})})
        places = [(run, place) for run in runs for place in sorted({e.slot.place for e in self.run_of(key, run)})]
        groups = (self._at(key, run, place) for run, place in places)
        in_corpus = self._in_corpus(key)
        return [
            row for group in groups if self._answered(key, group) for row in answer_rows(group, in_corpus=in_corpus)
        ]

    def read(self, file: Path, settings: Mapping[str, Any]) -> None:
        """Read what `file` holds, and cut off a line that was never finished.

        Raises UsageError for other settings than `settings`, or a line that is no record.
        """
        for number, line in enumerate(kept_lines(file, settings, _COMMAND), 1):
            try:
                self._read_line(line)
            except (ValueError, TypeError, AttributeError) as error:
                raise no_record(f"{file}:{number}", _COMMAND) from error

    def _read_line(self, line: dict[str, Any]) -> None:  # Any: JSON
        for kind, content in line.items():
            match kind:
                case "case":
                    self._keep_case(_CASE.validate_python(content))
                case "answer":
                    self._keep_answer(_ANSWER.validate_python(content))
                case "complete":
                    self.is_complete = True
                case _:
                    pass

    def _keep_case(self, case: CaseEntry) -> None:
        self.cases[case.key] = case

    def _keep_answer(self, entry: AnswerEntry) -> None:
        slot = (entry.slot.run, entry.slot.place, entry.slot.way)
        self._answers.setdefault(entry.key, {})[slot] = entry

    def _at(self, key: CaseKey, run: int, place: int) -> list[AnswerEntry]:
        found = (self._answers[key].get((run, place, way)) for way in self.cases[key].variants)
        return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.slot.order)

    def _in_corpus(self, key: CaseKey) -> bool:
        return self.cases[key].setting.questions is None

    def _answered(self, key: CaseKey, group: Sequence[AnswerEntry]) -> bool:
        return len(group) == len(self.cases[key].variants)

    def _write_rows(self, rows: Sequence[Row]) -> None:
        if self._table is not None and rows:
            writer = csv.DictWriter(self._table, list(rows[0]))
            if not self._table.tell():
                writer.writeheader()
            writer.writerows(rows)
            self._table.flush()


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """The files to write, and with `resume` what the first one holds is not measured again."""

    lines: Path | None
    table: Path | None
    settings: Mapping[str, Any]  # Any: JSON
    resume: bool

    @classmethod
    def of(
        cls, named: Sequence[Path], report: Path | None, settings: Mapping[str, Any], *, resume: bool
    ) -> RecordFiles:
        """Sort the named files by their endings; the lines are beside the report unless named.

        Raises UsageError for other endings, two of a kind, or no file to resume from.
        """
        by_ending: dict[str, Path] = {}
        for file in named:
            if file.suffix not in (JSONL, CSV) or file.suffix in by_ending:
                raise UsageError(f"records={file}: need one file that ends in {JSONL}, and at most one in {CSV}")
            by_ending[file.suffix] = file
        beside = None if report is None or str(report) == "-" else report.with_suffix(f".records{JSONL}")
        lines = by_ending.get(JSONL, beside)
        if resume and lines is None:
            raise UsageError(f"resume: need the file of the answers so far: --records FILE{JSONL}, or --json FILE")
        return cls(lines, by_ending.get(CSV), settings, resume)

    @contextmanager
    def open(self) -> Iterator[Records]:
        """Yield what is there, and append to the files while the context lasts.

        Raises UsageError for records of other settings, unfinished ones without `resume`, and unwritable files.
        """
        records = Records()
        with ExitStack() as stack:
            try:
                if self.lines is not None and self.lines.exists():
                    if self.resume:
                        records.read(self.lines, self.settings)
                    else:
                        kept_lines(self.lines, self.settings, _COMMAND, resume=False)
                lines = self._opened(self.lines, "a" if records.cases else "w", stack)
                table = self._opened(self.table, "w", stack)
            except OSError as error:
                raise UsageError(f"cannot write {error.filename}: {error.strerror}") from error
            records.append_to(lines, table, self.settings)
            yield records

    def _opened(self, file: Path | None, mode: Literal["a", "w"], stack: ExitStack) -> TextIO | None:
        if file is None:
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        return stack.enter_context(file.open(mode, encoding="utf-8", newline=""))


def answer_rows(group: Sequence[AnswerEntry], *, in_corpus: bool = True) -> list[Row]:
    """Return a flat row for each answer to one prompt of one run; only prompts of the corpus are easy or hard."""
    right = next((entry.answer.token_ids for entry in group if entry.slot.way == STREAM), None)
    groups = TEXT_GROUPS if in_corpus else {}
    return [_row(entry, right, groups) for entry in group]


def _row(entry: AnswerEntry, right: tuple[int, ...] | None, groups: Mapping[str, Sequence[str]]) -> Row:
    answer, told, traffic = entry.answer, entry.answer.statistics, entry.answer.traffic
    judging = answer.judging(answer.drafts)
    return {
        **asdict(entry.key),
        "link_seed": entry.key.seed + entry.slot.run,
        **asdict(entry.slot),
        "family": entry.family,
        "text": next((name for name, families in groups.items() if entry.family in families), ""),
        "prompt_tokens": entry.prompt_tokens,
        "held_tokens": answer.held_tokens,
        "tokens": len(answer.token_ids),
        "ttft_ms": answer.ttft_ms,
        "ttft_warm_ms": answer.warm_ms,
        "decode_ms": answer.decode_ms,
        "decoded_tokens": answer.decoded_tokens,
        "tokens_per_second": ratio(answer.decoded_tokens * 1e3, answer.decode_ms),
        "verdicts": len(judging),
        "verdict_tokens": sum(reply.tokens for reply in judging),
        "stale_drafts": told.stale_drafts,
        "target_calls": told.target_calls,
        "verify_ms": mean(reply.verify_ms for reply in answer.replies[1:] if reply.verify_ms),
        "server_draft_ms": sum(reply.draft_ms for reply in answer.replies),
        "bytes_up": told.bytes_up,
        "bytes_down": told.bytes_down,
        **{f"link_{name}": traffic and getattr(traffic, name) for name in _TRAFFIC},
        "pings": len(entry.pings_ms),
        "ping_ms": mean(entry.pings_ms),
        "outages": told.outages,
        "matches_stream": None if right is None else answer.token_ids == right,
    }
