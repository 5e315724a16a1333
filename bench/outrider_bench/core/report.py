"""Reports as files: JSON written whole or not at all, with its provenance inside."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from outrider_bench.core.provenance import provenance
from outrider_proto.errors import UsageError
from outrider_proto.files import write_atomically


def write_report(path: Path | None, results: Mapping[str, object]) -> None:
    """Write `results` and their provenance to `path`; to standard output when it is `-`, nowhere when None.

    Raises UsageError when the place cannot be written.
    """
    if path is None:
        return
    text = json.dumps({**results, "made_by": provenance()}) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
