"""Reports as JSON files, written atomically, with their provenance inside; rows as CSV files."""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Self, TextIO

import outrider_models
from outrider_proto.errors import UsageError
from outrider_proto.files import write_atomically

_PACKAGES = ("outrider", "torch", "transformers", "grpcio", "numpy")


def write_report(path: Path | None, results: Mapping[str, object], study: str | None = None) -> None:
    """Write `results` and their provenance to `path`; `study` is the command that shows them again.

    `-` is standard output; None writes nothing. Raises UsageError when the file cannot be written.
    """
    if path is None:
        return
    made_by = provenance() if study is None else {"study": study, **provenance()}
    text = without_places(json.dumps({**results, "made_by": made_by})) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


class CsvFile:
    """A CSV file of rows with the same columns, written as they come; None writes nothing. A context manager.

    Raises UsageError when the file cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._writer: csv.DictWriter[str] | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("w", encoding="utf-8", newline="")
            except OSError as error:
                raise UsageError(f"cannot write {self._path}: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, rows: Sequence[Mapping[str, object]]) -> None:
        if self._file is None or not rows:
            return
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(rows[0]))
            self._writer.writeheader()
        self._writer.writerows(rows)
        self._file.flush()


def provenance() -> dict[str, object]:
    """Return command line, package versions, processor, threads and load average."""
    # Imported here, since commands load this module for their help.
    import torch

    return {
        "command": without_places(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]])),
        "versions": {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def without_places(text: str) -> str:
    """Put ~ for the user's home directory, and nothing before what ships: others, who read this, have theirs."""
    home, shipped = str(Path.home()), Path(outrider_models.__file__).parents[1]
    text = text.replace(f"{shipped}/", "")
    return text if home == "/" else text.replace(f"{home}/", "~/")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
