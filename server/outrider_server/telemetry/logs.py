"""Logs as text or as JSON, one object a line, and an INFO line for every stream that ends: how long, how much, why.

Nothing that sessions say is ever logged: no token, text or key.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from typing import Any, Final

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Verdict
from outrider_proto.terminal.log_limit import BY_STRANGERS, LogLimit
from outrider_proto.terminal.text import PrintableRecord, printable
from outrider_server.config.config import LogFormat, LogLevel
from outrider_server.scheduling.reply_poster import Reply
from outrider_server.telemetry.observer import ServerObserver, StreamObserver

_access = logging.getLogger("outrider_server.access")
_SHOWN = 8  # characters of a session's id: enough to find its lines, too few to resume it
FIELDS: Final = "fields"  # key in logging's `extra`: the values of a message, by name


class TextFormatter(logging.Formatter):
    """Formats level, logger and message, and an error's traceback, as a terminal may get them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


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
    logging.setLogRecordFactory(PrintableRecord)
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(levelname)s %(name)s: %(message)s"))
    handler.addFilter(StrangersFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class StrangersFilter(LogLimit):
    """Limits the lines that anybody can cause, of a handler's."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line may be written."""
        # Errors with a traceback too, and what these libraries say: a stranger may have found how to cause them.
        is_unforeseen = record.exc_info or record.name.startswith(("grpc", "asyncio"))
        is_by_strangers = is_unforeseen or getattr(record, BY_STRANGERS, False)
        return super().filter(record) if is_by_strangers else True


class AccessLog(ServerObserver):
    """Logs every stream that ends."""

    def stream(self) -> StreamObserver:
        return _Entry()

    def refused(self, reason: Reason) -> None:
        name = reason.name.lower()
        _access.info("a call was refused: %s", name, extra={FIELDS: {"reason": name}, BY_STRANGERS: True})


class _Entry(StreamObserver):
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._about: dict[str, object] = {"session": "", "key": "", "resumed": False}
        self._requests = self._verdicts = self._tokens = 0

    def opened(self, session_id: str, key_id: str, *, resumed: bool) -> None:
        self._about = {"session": session_id[:_SHOWN], "key": key_id, "resumed": resumed}

    def asked(self, frame: Draft | Decode) -> None:
        self._requests += 1

    def answered(self, seq: int, answer: Reply) -> None:
        if isinstance(answer, Verdict) and not answer.stale:
            self._verdicts += 1
            self._tokens += len(answer.path) + len(answer.tokens) + (answer.bonus is not None)

    def ended(self, refusal: Refusal | None) -> None:
        reason = "closed" if refusal is None else refusal.reason.name.lower()
        seconds = round(time.monotonic() - self._started, 3)
        counts = {"requests": self._requests, "verdicts": self._verdicts, "tokens": self._tokens}
        _access.info(
            "stream of session %s ended after %.3f s, %d verdicts, %d tokens: %s",
            *(self._about["session"] or "(none)", seconds, self._verdicts, self._tokens, reason),
            extra={
                FIELDS: {**self._about, "duration_s": seconds, **counts, "reason": reason},
                BY_STRANGERS: not self._about["session"],
            },
        )
