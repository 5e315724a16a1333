"""What a study is: options, rows that are measured one after another, and a report with its tables and plot.

    options -> run() -> rows -> report() -> JSON -> tables(), plot()
                 ^        |
                 +--------+  rows of an interrupted run are kept, and not measured again

Tables and plots are made of the JSON alone, so that `outrider-bench show` makes the same ones later.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, get_args

from pydantic import TypeAdapter

from outrider_bench.core.progress import Step
from outrider_bench.core.tables import ResultTable
from outrider_bench.harness.options import (
    DraftersOption,
    FamiliesOption,
    JsonOption,
    QuestionsOption,
    TargetOption,
    drafters_for,
    source_of,
    sources_of,
    target_of,
)
from outrider_proto.options.fields import Option

if TYPE_CHECKING:
    from outrider_bench.core.prompts import QuestionSource

WHOLE = "whole"  # the name of a single row
_DESTINATIONS = ("json", "csv", "plot")  # say where to write, and nothing about what is measured


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """A study's options: a field with a Flag each; the class's docstring is the command's help."""

    shown: ClassVar[str]  # names of the options on the command line; --set takes all others
    json: JsonOption = None

    @classmethod
    def is_shown(cls, option: Option) -> bool:
        return option.name in cls.shown.split()

    @property
    def report_file(self) -> Path | None:
        return self.json

    @property
    def settings(self) -> dict[str, Any]:  # Any: JSON
        """What determines the rows, as JSON has it; of files with their content."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _DESTINATIONS}
        return json.loads(json.dumps(given, default=_as_json))  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class TargetOptions(StudyOptions):
    """Options of a study of any target."""

    target: TargetOption = None

    @cached_property
    def directory(self) -> Path:
        return target_of(self.target)


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(TargetOptions):
    """Options of a study that asks held-out prompts of the embedded corpus, or a user's questions."""

    questions: QuestionsOption = None
    families: FamiliesOption = ()

    @cached_property
    def source(self) -> QuestionSource:
        return source_of(self.directory, self.questions, self.families)

    def or_all(self, given: int | None, of_corpus: int) -> int | None:
        """Return the number of questions to ask; None, all, is the default for a user's."""
        return of_corpus if given is None and self.questions is None else given


@dataclass(frozen=True, kw_only=True)
class DraftersOptions(QuestionOptions):
    """Options of a study of several drafters, by default `of_embedded` or, of other targets, all that ship."""

    of_embedded: ClassVar[Sequence[str] | None] = None
    drafter: DraftersOption = ()

    @cached_property
    def drafters(self) -> Mapping[str, str]:
        """Sources, by name."""
        return sources_of(drafters_for(self.directory, self.drafter, self.of_embedded))


def _as_json(value: Any) -> Any:  # Any: what json cannot write; JSON, or a Path in it
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    path: Path = value
    if not path.is_file():
        return str(path)
    return f"{path} {hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()}"


OptionsT = TypeVar("OptionsT", bound=StudyOptions)
RowT = TypeVar("RowT")
ReportT = TypeVar("ReportT")
Measured: TypeAlias = AsyncGenerator[tuple[str, RowT], None]  # rows and their names


class Study(ABC, Generic[OptionsT, RowT, ReportT]):
    """One study, a subclass of `Study[its options, its rows, its report]`; pydantic reads the types from JSON."""

    row: ClassVar[TypeAdapter[Any]]  # Any: a type, or a union of some
    result: ClassVar[TypeAdapter[Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        (base,) = cls.__orig_bases__  # type: ignore[attr-defined] # of a generic class
        if not isinstance(get_args(base)[0], TypeVar):
            _, row, *rest = get_args(base)
            cls.row, cls.result = TypeAdapter(row), TypeAdapter(rest[0] if rest else row)

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def measure_missing(self, taken: Mapping[str, RowT], take: Callable[[str, RowT], None], step: Step) -> None:
        """Measure the rows that are not in `taken`, and hand each to `take`, which adds it there, as it comes."""

        async def rows() -> None:
            async with aclosing(self.run(taken, step)) as found:
                async for name, row in found:
                    take(name, row)

        asyncio.run(rows())

    def run(self, taken: Mapping[str, RowT], step: Step) -> Measured[RowT]:
        """Yield the rows that are not in `taken`, which also gets those that are yielded meanwhile."""
        raise NotImplementedError

    @abstractmethod
    def report(self, rows: Mapping[str, RowT]) -> ReportT:
        """Return the report on all rows."""

    @classmethod
    def as_dict(cls, report: ReportT) -> dict[str, Any]:  # Any: JSON
        """Return the report's content, which may hold more than `result` reads again."""
        return cls.result.dump_python(report, mode="json", by_alias=True)  # type: ignore[no-any-return]

    @staticmethod
    def tables(report: ReportT) -> Iterable[ResultTable]:  # some have none
        """Return the tables to print."""
        return ()

    @staticmethod
    def notes(report: ReportT) -> Iterable[str]:
        """Return lines to print below the tables."""
        return ()

    @staticmethod
    def failures(report: ReportT) -> Iterable[str]:
        """Return what is wrong, a line each; the command ends with 1 if there are any."""
        return ()

    @staticmethod
    def plot(report: ReportT, path: Path) -> None:
        """Draw the report; only studies whose options have `plot`."""
        raise NotImplementedError


class WholeStudy(Study[OptionsT, ReportT, ReportT]):
    """A study that is measured as a whole, such as one whose ways take turns: an interrupted run begins again."""

    @abstractmethod
    async def measure(self, step: Step) -> ReportT:
        """Measure everything."""

    async def run(self, taken: Mapping[str, ReportT], step: Step) -> Measured[ReportT]:
        if WHOLE not in taken:
            yield WHOLE, await self.measure(step)

    def report(self, rows: Mapping[str, ReportT]) -> ReportT:
        return rows[WHOLE]
