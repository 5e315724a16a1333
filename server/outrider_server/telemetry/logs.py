"""Log output as text or as JSON, one object a line. Nothing that sessions say is ever logged."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from outrider_server.config.telemetry import LogFormat, LogLevel

FIELDS: Final = "fields"  # key in logging's `extra`: the values of a message, by name


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger, message, the record's own fields, and an error's traceback."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {  # Any: as JSON has it
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in getattr(record, FIELDS, {}).items() if name not in entry}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def start_logging(log_format: LogFormat, level: LogLevel) -> None:
    """Log to stderr from now on, replacing former settings."""
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
