"""Lines of JSON that a measurement writes as it goes, so that it can go on.

{"settings": {...}, "made_by": {...}}   what determines the lines that follow
...                                     what was measured, a line each
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from outrider_bench.core.report import provenance
from outrider_proto.errors import UsageError

_Lines = list[dict[str, Any]]  # Any: JSON


class LineWriter:
    """Appends lines to a file; to None, nothing."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def begin(self, settings: Mapping[str, Any]) -> None:  # Any: JSON
        self.write({"settings": settings, "made_by": provenance()})

    def write(self, content: Mapping[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(content) + "\n")
            self._file.flush()  # what a killed process has measured is then there


def kept_lines(path: Path, settings: Mapping[str, Any], command: str) -> _Lines:  # Any: JSON
    """Return the lines of an earlier run of `outrider-bench COMMAND`, and cut off one that was never finished.

    Raises UsageError for other settings, and for any other file.
    """
    data = path.read_bytes()
    if data and not data.startswith(b'{"settings"'):
        raise UsageError(f"{path}: no records of outrider-bench {command}: name another file")
    whole = data[: data.rfind(b"\n") + 1]
    lines = [_parsed(line, f"{path}:{number}", command) for number, line in enumerate(whole.split(b"\n")[:-1], 1)]
    for line in lines:
        if "settings" in line and (difference := first_difference(settings, line["settings"])) is not None:
            raise UsageError(f"{path}: {difference}: give the same options, or name another file")
    if len(whole) < len(data):
        path.write_bytes(whole)
    return lines


def no_record(place: str, command: str) -> UsageError:
    return UsageError(f"{place}: no record of outrider-bench {command}: remove the file")


def _parsed(line: bytes, place: str, command: str) -> dict[str, Any]:  # Any: JSON
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise no_record(place, command)
    return content


def first_difference(here: object, there: object, path: str = "") -> str | None:
    """Name the first value in which two JSON contents differ, `runs=3 here, 5 there`; None for equal ones."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in dict.fromkeys((*here, *there)):
            inner = first_difference(here.get(key), there.get(key), f"{path}.{key}" if path else str(key))
            if inner is not None:
                return inner
        return None
    return None if here == there else f"{path}={json.dumps(here)} here, {json.dumps(there)} there"
