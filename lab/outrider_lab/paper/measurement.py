"""What a report is made of: commands of bench and lab, each with its JSON report, measured once.

    OUT/json/NAME.json      the report of `outrider-bench COMMAND ... --json OUT/json/NAME.json`
    OUT/json/NAME.begun-*   what that very command keeps to go on after an interruption, until it has ended

A report whose command, or a file that it names, was another one is measured again.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess, SpawnProcess
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from outrider_bench.core.processes import forking
from outrider_bench.core.report import without_places
from outrider_bench.core.tables import show_line
from outrider_proto.errors import OutriderError, UsageError
from outrider_proto.files import MAX_REPORT_BYTES, read_json, write_atomically

if TYPE_CHECKING:
    from outrider_bench.harness.study import Study

KEPT = "{kept}"
Process = ForkServerProcess | SpawnProcess
ReportT = TypeVar("ReportT")
_ABOUT = ("made_by", "paper_key", "paper_failed")  # what is added to a study's report
_FAILED_CHECK = 1  # the exit code of a report that was written, and says what is wrong
# The commands of outrider-lab; all others are outrider-bench's.
_LAB = ("depth-sweep", "edge-weights", "eval", "record", "routing", "staleness", "sweep", "typical")
_STOP_S = 3.0  # Ctrl-C also reaches the command, which stops its servers then
# All that a command imports, which takes seconds of a processor.
_IMPORTED = (
    "outrider_lab.paper.exhibits",
    "outrider_lab.cli.app",
    "outrider_bench.load.study",
    "outrider_bench.network.study",
)


def settings(**values: object) -> tuple[str, ...]:
    """Return options of a command as --set takes them."""
    return tuple(word for name, value in values.items() for word in ("--set", f"{name.replace('_', '-')}={value}"))


class MeasurementError(OutriderError):
    """A command of the report has failed."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A command whose report `name` holds, and which goes on by itself when it was interrupted.

    `first` is a command that has to run before. In both, KEPT stands for the beginning of the names of files that one
    writes for the other. `timed`: others that run beside it would change its figures.
    """

    name: str
    arguments: tuple[str, ...]
    first: tuple[str, ...] = ()
    timed: bool = True

    @property
    def command(self) -> str:
        commands = [arguments for arguments in (self.first, self.arguments) if arguments]
        return without_places(" && ".join(shlex.join([_program(arguments[0]), *arguments]) for arguments in commands))

    @property
    def key(self) -> str:
        """The command, and the content of files that it names, such as questions."""
        named = (Path(argument.removeprefix("questions=")) for argument in (*self.first, *self.arguments))
        digests = (blake2b(path.read_bytes(), digest_size=8).hexdigest() for path in named if path.is_file())
        return " ".join((self.command, *digests))

    def taken(self, directory: Path) -> dict[str, Any] | None:  # Any: JSON
        """Return the report if this very command has written it. Raises UsageError for a file that is none."""
        path = self._report(directory)
        report = _read(path) if path.is_file() else {}
        return report if report.get("paper_key") == self.key else None

    def can_be_had(self, directory: Path) -> bool:
        """Return whether the report is there, or else the models that were trained for it."""
        named = (Path(argument.partition(",")[0]) for argument in self.arguments)
        return self.taken(directory) is not None or all(path.exists() for path in named if path.is_absolute())

    def start(self, directory: Path, log: Path | None = None, threads: int | None = None) -> Process:
        """Run the command in a process of its own, which writes what it says to `log`. Raises OSError."""
        begun = self.begun(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(f"{self.name}.begun-*"):
            if not left.name.startswith(begun.name):  # what another command has left is no beginning of this one
                left.unlink()
        show_line(f"{self.name}: {self.command}")
        arguments = [*self.arguments, "--json", f"{begun}.json"]
        commands = [
            [argument.replace(KEPT, str(begun)) for argument in command]
            for command in (self.first, arguments)
            if command
        ]
        process = forking(*_IMPORTED).Process(target=_run_commands, args=(commands, log, threads))
        process.start()
        return process

    def finish(self, directory: Path, code: int | None) -> dict[str, Any]:  # Any: JSON
        """Return the report of the ended process. Raises MeasurementError if there is none, and OSError."""
        begun = self.begun(directory)
        written = Path(f"{begun}.json")
        if code not in (0, _FAILED_CHECK) or not written.is_file():
            raise MeasurementError(f"{self.command}: ended with {code}; the same command goes on from there")
        report: dict[str, Any] = read_json(written, MAX_REPORT_BYTES)
        report |= {"paper_key": self.key, "paper_failed": code == _FAILED_CHECK}
        write_atomically(self._report(directory), json.dumps(report) + "\n")
        for kept in directory.glob(f"{begun.name}*"):
            kept.unlink()
        return report

    def begun(self, directory: Path) -> Path:
        """Return the beginning of the names of files that this very command leaves when it is interrupted."""
        return directory / f"{self.name}.begun-{blake2b(self.key.encode(), digest_size=8).hexdigest()}"

    def _report(self, directory: Path) -> Path:
        return directory / f"{self.name}.json"


def _program(command: str) -> str:
    return "outrider-lab" if command in _LAB else "outrider-bench"


def _run_commands(commands: Sequence[Sequence[str]], log: Path | None, threads: int | None) -> None:
    """Run one after the other, as long as they end with 0; with `threads` for themselves and for their servers."""
    if log is not None:
        with log.open("w") as file:
            os.dup2(file.fileno(), sys.stderr.fileno())
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)
    for arguments in commands:
        program = _program(arguments[0])
        sys.argv = [program, *arguments]
        try:
            # By name: the commands are above this package, and are only run here.
            resolve_name(f"{program.replace('-', '_')}.cli.app:main")()
        except SystemExit as end:
            if end.code:
                raise


def take_all(
    measurements: Sequence[Measurement], directory: Path, at_once: int = 1
) -> dict[str, dict[str, Any]]:  # Any: JSON
    """Return all reports by name; those that are missing are measured now.

    Timed ones have the machine to themselves; of the others, `at_once` run side by side after them. Raises UsageError,
    MeasurementError.
    """
    reports = {one.name: report for one in measurements if (report := one.taken(directory)) is not None}
    missing = [one for one in measurements if one.name not in reports]
    if missing and reports:
        show_line(f"{directory}: {len(reports)} of {len(measurements)} reports are there already")
    try:
        for timed, number in ((True, 1), (False, at_once)):
            reports |= _take([one for one in missing if one.timed is timed], directory, number)
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or directory}: {error.strerror}") from error
    return {one.name: reports[one.name] for one in measurements}


def _take(measurements: Sequence[Measurement], directory: Path, at_once: int) -> dict[str, dict[str, Any]]:  # Any: JSON
    """Run up to `at_once` commands side by side; what each says comes when it has ended, unless it is alone."""
    waiting, running = list(reversed(measurements)), dict[Process, Measurement]()
    at_once = max(1, min(at_once, len(measurements)))  # one that is alone shows its progress
    threads = None if at_once == 1 else max(1, (os.cpu_count() or 1) // at_once)
    reports = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                one = waiting.pop()
                log = None if at_once == 1 else Path(f"{one.begun(directory)}.log")
                running[one.start(directory, log, threads)] = one
            connection.wait([process.sentinel for process in running])
            for process in [process for process in running if process.exitcode is not None]:
                one = running.pop(process)
                if (log := Path(f"{one.begun(directory)}.log")).is_file():
                    sys.stderr.write(log.read_text())
                reports[one.name] = one.finish(directory, process.exitcode)
    except BaseException:
        give_up_at = time.monotonic() + _STOP_S
        for process in running:
            process.join(max(0.0, give_up_at - time.monotonic()))
            process.terminate()
        for process in running:
            process.join()
        raise
    return reports


def measured_arguments(directory: Path) -> frozenset[str]:
    """Return what the commands of all reports that are there name, as in `command`. Raises UsageError as taken()."""
    keys = (_read(path).get("paper_key", "") for path in directory.glob("*.json"))
    return frozenset(argument for key in keys for argument in shlex.split(key))


def _read(path: Path) -> dict[str, Any]:  # Any: JSON
    report = read_json(path, MAX_REPORT_BYTES)
    if not isinstance(report, dict):
        raise UsageError(f"{path}: no report of outrider-bench: remove the file")
    return report


def as_measured(study: type[Study[Any, Any, ReportT]], report: Mapping[str, Any]) -> ReportT:  # Any: JSON
    """Return a study's report as the study has made it, for its tables and plots."""
    content = {name: value for name, value in report.items() if name not in _ABOUT}
    measured: ReportT = study.result.validate_python(content)
    return measured


Reports = Mapping[str, Mapping[str, Any]]  # Any: JSON
