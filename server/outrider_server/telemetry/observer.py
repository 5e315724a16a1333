"""Observers of a verifier. The methods here do nothing; metrics, logs and traces override those they need.

Called on the event loop, but for `stepped`, which the engine thread calls. They must be quick. Their arguments hold
tokens, which must never go into a metric, a log or a trace. `ObserverGroup` catches what they raise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft
from outrider_server.scheduling.reply_poster import Reply
from outrider_server.scheduling.step_stats import StepStats

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerStats:
    """Values that a verifier has now, and some counts since its start."""

    active: int  # sessions with a stream
    parked: int  # sessions without
    kv_bytes: int = 0  # K/V and features in use
    kv_limit_bytes: int | None = None  # None: all the machine has
    swap_bytes: int = 0  # of the host's memory, for evicted sessions
    evictions: int = 0  # for memory, since the start as all that follow
    restored: int = 0  # tokens that came back from the host
    prefix_queries: int = 0  # context tokens looked up in the prefix cache
    prefix_hits: int = 0  # and found


class StreamObserver:
    """Observes one stream, from its first byte to its end."""

    def opened(self, session_id: str, key_id: str, *, resumed: bool) -> None:
        """The stream has a session; `key_id` is empty where no keys are required."""

    def asked(self, frame: Draft | Decode) -> None:
        """A request was accepted."""

    def answered(self, seq: int, answer: Reply) -> None:
        """The engine thread has replied to a request of the stream."""

    def ended(self, refusal: Refusal | None) -> None:
        """The stream has ended. Called exactly once."""


class ServerObserver:
    """Observes the whole server."""

    def stream(self) -> StreamObserver:
        """A stream begins; return its observer."""
        return StreamObserver()

    def refused(self, reason: Reason) -> None:
        """A call was refused before it became a stream."""

    def received(self, num_bytes: int) -> None:
        """Bytes of a stream's frames have come."""

    def sent(self, num_bytes: int) -> None:
        """Bytes of a stream's frames have been sent."""

    def stepped(self, report: StepStats) -> None:
        """A pass has ended."""


class _Guard:
    """Calls methods of one observer, and catches what they raise. Reentrant, and used by several threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_failed = False

    def __call__(self, method: Callable[..., Any], *about: Any, **named: Any) -> Any:  # Any: as the method has it
        try:
            return method(*about, **named)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                text = "%s failed; the server goes on, and what it reports may be wrong"
                _log.error(text, self._name, exc_info=error)


def _of_all(name: str) -> Any:  # Any: a method of that name
    """Return a method that calls that of every member."""

    def tell(group: ObserverGroup | _StreamObserverGroup, *about: Any, **named: Any) -> None:  # Any: as the method has
        for guard, member in group.members:
            guard(getattr(member, name), *about, **named)

    return tell


class ObserverGroup(ServerObserver):
    """Calls several observers.

    What one of them raises is logged the first time and goes no further: observers must not end a stream or the engine
    thread.
    """

    def __init__(self, members: Sequence[ServerObserver]) -> None:
        self.members = [(_Guard(type(member).__name__), member) for member in members]

    def stream(self) -> StreamObserver:
        watches = [(guard, guard(member.stream)) for guard, member in self.members]
        return _StreamObserverGroup([(guard, watch) for guard, watch in watches if watch is not None])

    refused = _of_all("refused")
    received = _of_all("received")
    sent = _of_all("sent")
    stepped = _of_all("stepped")


class _StreamObserverGroup(StreamObserver):
    def __init__(self, members: Sequence[tuple[_Guard, StreamObserver]]) -> None:
        self.members = members

    opened = _of_all("opened")
    asked = _of_all("asked")
    answered = _of_all("answered")
    ended = _of_all("ended")
