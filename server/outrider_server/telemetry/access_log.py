"""One INFO line for every stream that ends: how long, how much, why. No token, text or key."""

from __future__ import annotations

import logging
import time

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Verdict
from outrider_server.scheduling.request import Reply
from outrider_server.telemetry.logs import FIELDS
from outrider_server.telemetry.observer import ServerObserver, StreamObserver

_log = logging.getLogger("outrider_server.access")
_SHOWN = 8  # characters of a session's id: enough to find its lines, too few to resume it
_CLOSED = "closed"


class AccessLog(ServerObserver):
    """Logs every stream that ends."""

    def stream(self) -> StreamObserver:
        return _Entry()

    def refused(self, reason: Reason) -> None:
        name = reason.name.lower()
        _log.info("a call was refused: %s", name, extra={FIELDS: {"reason": name}})


class _Entry(StreamObserver):
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._session = self._key = ""
        self._resumed = False
        self._requests = self._verdicts = self._tokens = 0

    def opened(self, session_id: str, key_id: str, *, resumed: bool) -> None:
        self._session, self._key, self._resumed = session_id[:_SHOWN], key_id, resumed

    def asked(self, frame: Draft | Decode) -> None:
        self._requests += 1

    def answered(self, seq: int, answer: Reply) -> None:
        if isinstance(answer, Verdict) and not answer.stale:
            self._verdicts += 1
            self._tokens += len(answer.path) + len(answer.tokens) + (answer.bonus is not None)

    def ended(self, refusal: Refusal | None) -> None:
        reason = _CLOSED if refusal is None else refusal.reason.name.lower()
        seconds = round(time.monotonic() - self._started, 3)
        _log.info(
            "stream of session %s ended after %.3f s, %d verdicts, %d tokens: %s",
            *(self._session or "(none)", seconds, self._verdicts, self._tokens, reason),
            extra={
                FIELDS: {
                    "session": self._session,
                    "key": self._key,
                    "resumed": self._resumed,
                    "duration_s": seconds,
                    "requests": self._requests,
                    "verdicts": self._verdicts,
                    "tokens": self._tokens,
                    "reason": reason,
                }
            },
        )
