"""Lines of JSON that a measurement writes as it goes, read again when it is resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider_proto.errors import UsageError


def whole_lines(path: Path, what: str) -> list[dict[str, Any]]:  # Any: JSON
    """Return the lines of the file, and cut off one that was never finished.

    Raises UsageError for a line that holds no JSON object: the file is none of `what`.
    """
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if data and not whole:
        raise UsageError(f"{path}: no {what}: remove the file")
    lines = [_entry(line, f"{path}:{number}: no {what}") for number, line in enumerate(whole.splitlines(), 1)]
    if len(whole) < len(data):
        path.write_bytes(whole)
    return lines


def _entry(line: bytes, otherwise: str) -> dict[str, Any]:  # Any: JSON
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise UsageError(f"{otherwise}: remove the file")
    return entry


def first_difference(here: object, there: object, path: str = "") -> str | None:
    """Name the first value in which two JSON contents differ, `runs=3 here, 5 there`; None for equal ones."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in dict.fromkeys((*here, *there)):
            inner = first_difference(here.get(key), there.get(key), f"{path}.{key}" if path else str(key))
            if inner is not None:
                return inner
        return None
    return None if here == there else f"{path}={json.dumps(here)} here, {json.dumps(there)} there"
