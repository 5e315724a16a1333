"""What a verifier tells those who watch it. These do nothing; metrics, logs and traces override what they care for.

Called on the event loop, but for `ticked`, which the model thread calls. They must be quick, and must not raise. What
they are given holds tokens: those never go into a metric, a log or a trace.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft
from outrider_server.jobs import Answer
from outrider_server.load import TickReport


class StreamWatch:
    """One stream, from its first byte to its end."""

    def opened(self, session_id: str, key_id: str, *, resumed: bool) -> None:
        """It speaks for a session from now on; `key_id` is empty where no keys are asked for."""

    def asked(self, frame: Draft | Decode) -> None:
        """A request was taken."""

    def answered(self, seq: int, answer: Answer) -> None:
        """What the model thread says of a request, while the stream still cares."""

    def ended(self, refusal: Refusal | None) -> None:
        """Once, whatever happened."""


class Observer:
    """The whole server."""

    def stream(self) -> StreamWatch:
        """A stream begins."""
        return StreamWatch()

    def refused(self, reason: Reason) -> None:
        """A call was refused before it became a stream."""

    def received(self, num_bytes: int) -> None:
        """Of a stream's frames."""

    def sent(self, num_bytes: int) -> None:
        """Of a stream's frames."""

    def ticked(self, report: TickReport) -> None:
        """A pass has ended."""


class Observers(Observer):
    """Several at once."""

    def __init__(self, members: Sequence[Observer]) -> None:
        self._members = members

    def stream(self) -> StreamWatch:
        return _Watches([member.stream() for member in self._members])

    def refused(self, reason: Reason) -> None:
        for member in self._members:
            member.refused(reason)

    def received(self, num_bytes: int) -> None:
        for member in self._members:
            member.received(num_bytes)

    def sent(self, num_bytes: int) -> None:
        for member in self._members:
            member.sent(num_bytes)

    def ticked(self, report: TickReport) -> None:
        for member in self._members:
            member.ticked(report)


class _Watches(StreamWatch):
    def __init__(self, members: Sequence[StreamWatch]) -> None:
        self._members = members

    def opened(self, session_id: str, key_id: str, *, resumed: bool) -> None:
        for member in self._members:
            member.opened(session_id, key_id, resumed=resumed)

    def asked(self, frame: Draft | Decode) -> None:
        for member in self._members:
            member.asked(frame)

    def answered(self, seq: int, answer: Answer) -> None:
        for member in self._members:
            member.answered(seq, answer)

    def ended(self, refusal: Refusal | None) -> None:
        for member in self._members:
            member.ended(refusal)
