"""What a report is made of: commands of `outrider-bench`, each with its JSON report, measured once.

    OUT/json/NAME.json      the report of `outrider-bench COMMAND ... --json OUT/json/NAME.json`
    OUT/json/NAME.*         what that command keeps to go on after an interruption, until it has ended

A report whose command, or a file that it names, was another one is measured again.
"""

from __future__ import annotations

import json
import multiprocessing
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from outrider_bench.core.report import without_places
from outrider_bench.core.tables import show_line
from outrider_proto.errors import OutriderError, UsageError
from outrider_proto.files import write_atomically

if TYPE_CHECKING:
    from outrider_bench.harness.study import Study

KEPT = "{kept}"
ReportT = TypeVar("ReportT")
_ABOUT = ("made_by", "paper_key", "paper_failed")  # what is added to a study's report
_FAILED_CHECK = 1  # the exit code of a report that was written, and says what is wrong
_MAIN = "outrider_bench.cli.app:main"  # by name: the commands are above this package, and are only run here
_STOP_S = 3.0  # Ctrl-C also reaches the command, which stops its servers then
# All that a command imports, which takes seconds of a processor.
_IMPORTED = (
    "outrider_bench.paper.exhibits",
    "outrider_bench.cli.app",
    "outrider_bench.load.run",
    "outrider_bench.network.study",
)


class MeasurementError(OutriderError):
    """A command of the report has failed."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A command of `outrider-bench` whose report `name` holds, and which goes on by itself when it was interrupted.

    `first` is a command that has to run before. In both, KEPT stands for OUT/json/NAME, the beginning of the names of
    files that one writes for the other.
    """

    name: str
    arguments: tuple[str, ...]
    first: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        commands = [arguments for arguments in (self.first, self.arguments) if arguments]
        return without_places(" && ".join(shlex.join(["outrider-bench", *arguments]) for arguments in commands))

    @property
    def key(self) -> str:
        """The command, and the content of files that it names, such as questions."""
        named = (Path(argument) for argument in (*self.first, *self.arguments))
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

    def take(self, directory: Path) -> dict[str, Any]:  # Any: JSON
        """Run the command. Raises MeasurementError if it writes no report, and OSError."""
        path, asked = self._report(directory), directory / f"{self.name}.command"
        directory.mkdir(parents=True, exist_ok=True)
        begun = asked.is_file() and asked.read_text() == self.key
        if not begun:  # what another command has left is no beginning of this one
            for left in directory.glob(f"{self.name}.*"):
                left.unlink()
        asked.write_text(self.key)
        show_line(f"{self.name}: {self.command}")
        code = self._run(self.first, directory) if self.first else 0
        if code == 0:
            code = self._run((*self.arguments, "--json", str(path)), directory)
        if code not in (0, _FAILED_CHECK) or not path.is_file():
            raise MeasurementError(f"{self.command}: ended with {code}; the same command goes on from there")
        report: dict[str, Any] = json.loads(path.read_bytes())
        report |= {"paper_key": self.key, "paper_failed": code == _FAILED_CHECK}
        write_atomically(path, json.dumps(report) + "\n")
        for kept in directory.glob(f"{self.name}.*"):
            if kept != path:
                kept.unlink()
        return report

    def _run(self, arguments: Sequence[str], directory: Path) -> int:
        """Run a command in a process of its own and return its exit code."""
        given = [argument.replace(KEPT, str(directory / self.name)) for argument in arguments]
        process = _starting().Process(target=_run_command, args=(given,))
        process.start()
        try:
            process.join()
        except BaseException:
            process.join(_STOP_S)
            process.terminate()
            process.join()
            raise
        assert process.exitcode is not None
        return process.exitcode

    def _report(self, directory: Path) -> Path:
        return directory / f"{self.name}.json"


def _starting() -> ForkServerContext | SpawnContext:
    """Fork commands from one process that has imported everything."""
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return multiprocessing.get_context("spawn")
    # Not from this process: torch may have started threads here, and their locks would stay held in a fork for ever.
    starting = multiprocessing.get_context("forkserver")
    starting.set_forkserver_preload(list(_IMPORTED))
    return starting


def _run_command(arguments: Sequence[str]) -> None:
    sys.argv = ["outrider-bench", *arguments]
    resolve_name(_MAIN)()


def take_all(measurements: Sequence[Measurement], directory: Path) -> dict[str, dict[str, Any]]:  # Any: JSON
    """Return all reports by name; those that are missing are measured now. Raises UsageError, MeasurementError."""
    reports: dict[str, dict[str, Any]] = {}
    missing = [one for one in measurements if one.taken(directory) is None]
    if missing and len(missing) < len(measurements):
        show_line(f"{directory}: {len(measurements) - len(missing)} of {len(measurements)} reports are there already")
    try:
        for one in measurements:
            reports[one.name] = one.taken(directory) or one.take(directory)
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or directory}: {error.strerror}") from error
    return reports


def measured_arguments(directory: Path) -> frozenset[str]:
    """Return what the commands of all reports that are there name, as in `command`. Raises UsageError as taken()."""
    keys = (_read(path).get("paper_key", "") for path in directory.glob("*.json"))
    return frozenset(argument for key in keys for argument in shlex.split(key))


def _read(path: Path) -> dict[str, Any]:  # Any: JSON
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if not isinstance(report, dict):
        raise UsageError(f"{path}: no report of outrider-bench: remove the file")
    return report


def as_measured(study: type[Study[Any, Any, ReportT]], report: Mapping[str, Any]) -> ReportT:  # Any: JSON
    """Return a study's report as the study has made it, for its tables and plots."""
    content = {name: value for name, value in report.items() if name not in _ABOUT}
    measured: ReportT = study.result.validate_python(content)
    return measured


Reports = Mapping[str, Mapping[str, Any]]  # Any: JSON
