"""Access options as JSON for worker processes: files by name, never the key itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider_client.cli.access_options import access_from
from outrider_client.connection.access import Access

_FILES = ("ca", "client_cert", "client_key", "key_file")


def access_to_json(options: Mapping[str, Any]) -> dict[str, Any]:  # Any: each option has its own type
    """Turn paths into strings."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}


def access_from_json(options: Mapping[str, Any]) -> Access:  # Any: as above
    """Build the Access; a key is read from this process's environment. Raises UsageError."""
    return access_from({name: Path(value) if value and name in _FILES else value for name, value in options.items()})
