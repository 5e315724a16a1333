"""Runs a study: its command, progress, the rows of an interrupted run, and the report as JSON, tables and plot.

Rows are appended to FILE.partial, beside the report FILE, as they come:

    {"settings": {"study": NAME, ...}, "made_by": {...}}
    {"name": "moa in process", "row": {...}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, TextIO

import typer
from pydantic import TypeAdapter, ValidationError

from outrider_bench.core.progress import progress_line
from outrider_bench.core.report import provenance, write_report
from outrider_bench.core.tables import show, show_line
from outrider_bench.harness.options import PlotOption
from outrider_bench.harness.study import Study, StudyOptions
from outrider_proto.errors import UsageError
from outrider_proto.files import MAX_LINES_BYTES, MAX_REPORT_BYTES, parse_json, read_json, read_regular
from outrider_proto.options.command import with_options
from outrider_proto.options.fields import Flag
from outrider_proto.options.values import Table

_Study = Study[Any, Any, Any]  # Any: each has its own options, rows and report


@dataclass(frozen=True, slots=True)
class StudyCommand:
    """A study's command. `place` is MODULE:CLASS in `package`, imported when it runs: most of them load torch.

    `load` makes its options from a file, which --config then names, and from those given.
    """

    name: str
    options: type[StudyOptions]
    place: str
    load: Callable[[Path | None, Table], StudyOptions] | None = None
    package: str = "outrider_bench"

    @property
    def study(self) -> type[_Study]:
        found: type[_Study] = resolve_name(f"{self.package}.{self.place}")
        return found

    @property
    def callback(self) -> Callable[..., None]:
        """The function that typer makes the command of."""

        def command(options: StudyOptions) -> None:
            run_study(self.name, self.study(options))

        command.__doc__ = self.options.__doc__
        return with_options(self.options, self.load, self.options.is_shown)(command)


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What to show again, and how."""

    report: Annotated[Path, Flag("Report that a study has written with --json.", positional=True)]
    plot: PlotOption = None


def add_studies(app: typer.Typer, studies: Sequence[StudyCommand]) -> None:
    """Add a command for each study, and one that shows their reports again."""
    for study in studies:
        app.command(study.name)(study.callback)

    @app.command("show")
    @with_options(ShowOptions)
    def show_command(options: ShowOptions) -> None:
        """Show the report of a study again: its tables, and its plot with --plot."""
        show_report(options.report, options.plot, {study.name: study for study in studies})


def run_study(name: str, study: _Study) -> None:
    """Measure what is not there yet, and write and show the report. Exits with 1 where something is wrong."""
    options = study.options
    with open_rows(name, study) as rows:
        with progress_line() as step:
            study.measure_missing(rows.taken, rows.take, step)
        content = study.as_dict(study.report(rows.taken))
        report = _read(study, json.loads(json.dumps(content)), "report")
        failures = _show(study, report)
        write_report(options.report_file, content, study=name)
    if (plot := getattr(options, "plot", None)) is not None:
        study.plot(report, plot)
    if failures:
        raise typer.Exit(1)


def show_report(path: Path, plot: Path | None, commands: Mapping[str, StudyCommand]) -> None:
    """Show the report of a study again, and draw its plot. Raises UsageError for what is none, or has no plot."""
    content = read_json(path, MAX_REPORT_BYTES)
    about = content.pop("made_by", None) if isinstance(content, dict) else None
    name = about.get("study") if isinstance(about, dict) else None
    if not isinstance(name, str) or name not in commands:
        raise UsageError(f"{path}: no report of a study: need one of {', '.join(commands)}")
    command = commands[name]
    if plot is not None and "plot" not in {each.name for each in fields(command.options)}:
        raise UsageError(f"--plot {plot}: {name} draws none")
    report = _read(command.study, content, str(path))
    _show(command.study, report)
    if plot is not None:
        command.study.plot(report, plot)


class Rows:
    """The rows so far, by name; new ones are written to the file."""

    def __init__(self, row: TypeAdapter[Any], taken: dict[str, Any], file: TextIO | None = None) -> None:
        self.taken = taken
        self._row = row
        self._file = file

    def begin(self, settings: Mapping[str, Any]) -> None:  # Any: JSON
        self._write({"settings": settings, "made_by": provenance()})

    def take(self, name: str, row: Any) -> None:  # Any: the study's row
        self.taken[name] = row
        self._write({"name": name, "row": self._row.dump_python(row, mode="json", by_alias=True)})

    def _write(self, content: Mapping[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(content) + "\n")
            self._file.flush()  # what a killed process has measured is then there


@contextmanager
def open_rows(name: str, study: _Study) -> Iterator[Rows]:
    """Yield the rows of an interrupted run of the same study, if its options were the same.

    They go when the context ends well. Raises UsageError for those of other options.
    """
    report = study.options.report_file
    if report is None or str(report) == "-":
        yield Rows(study.row, {})
        return
    path = report.with_name(f"{report.name}.partial")
    settings = {"study": name, **study.options.settings}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        taken = _kept(path, settings, study) if path.exists() else {}
        file = path.open("a" if taken else "w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or path}: {error.strerror}") from error
    with file:
        rows = Rows(study.row, taken, file)
        if taken:
            show_line(f"{path}: {len(taken)} rows are there already")
        else:
            rows.begin(settings)
        try:
            yield rows
        except BaseException:
            if taken:
                show_line(f"{path}: {len(taken)} rows are kept: the same command goes on")
            else:
                path.unlink()
            raise
    path.unlink()


def _kept(path: Path, settings: Mapping[str, Any], study: _Study) -> dict[str, Any]:  # Any: JSON, rows
    """Return the file's rows by name, and cut off one that was never finished.

    Raises UsageError for other settings, and for any other file.
    """
    data, command = read_regular(path, MAX_LINES_BYTES), f"outrider-bench {settings['study']}"
    if data and not data.startswith(b'{"settings"'):
        raise UsageError(f"{path}: no records of {command}: name another file")
    whole, taken, difference = data[: data.rfind(b"\n") + 1], {}, None
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            content = parse_json(line, path)
            if number > 1:
                taken[content["name"]] = study.row.validate_python(content["row"])
            else:
                difference = first_difference(settings, content["settings"])
        except (UsageError, ValueError, KeyError, TypeError):  # no JSON, or of another version
            raise UsageError(f"{path}:{number}: no record of {command}: remove the file") from None
        if difference is not None:
            raise UsageError(f"{path}: {difference}: give the same options, or name another file")
    if len(whole) < len(data):
        path.write_bytes(whole)
    return taken


def first_difference(here: object, there: object, path: str = "") -> str | None:
    """Name the first value in which two JSON contents differ, `runs=3 here, 5 there`; None for equal ones."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in dict.fromkeys((*here, *there)):
            inner = first_difference(here.get(key), there.get(key), f"{path}.{key}" if path else str(key))
            if inner is not None:
                return inner
        return None
    return None if here == there else f"{path}={json.dumps(here)} here, {json.dumps(there)} there"


def _read(study: _Study | type[_Study], content: object, source: str) -> Any:  # Any: the study's report
    try:
        return study.result.validate_python(content)
    except ValidationError as error:
        raise UsageError(f"{source}: no report of this version: {error.errors()[0]['loc']}") from error


def _show(study: _Study | type[_Study], report: Any) -> list[str]:  # Any: as above
    """Print tables, notes and failures, which are returned."""
    show(*study.tables(report))
    for line in study.notes(report):
        show_line(line)
    failures = list(study.failures(report))
    for line in failures:
        show_line(line, style="red")
    return failures
