"""A connection that times every verdict and notices duplicate, unexpected and missing ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outrider_bench.core.tapped_transport import TappedConnection
from outrider_client.connection.transport import Connection
from outrider_proto.frames import ClientFrame, Decode, Draft, Finish, ServerFrame, Verdict


class VerdictObserver(Protocol):
    """Receives what an ObservedConnection sees."""

    def on_verdict(self, verdict: Verdict, seconds: float, *, on_prompt: bool) -> None:
        """Handle a verdict that came `seconds` after its request."""
        ...

    def on_stray(self) -> None:
        """Handle a verdict that belongs to no pending request."""
        ...


@dataclass(slots=True)
class _PendingVerdict:
    at: float
    on_prompt: bool
    streams: bool  # a Decode: verdicts come until it has finished


class ObservedConnection(TappedConnection):
    """Reports every verdict to a VerdictObserver."""

    def __init__(
        self, inner: Connection, observer: VerdictObserver, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(inner)
        self._observer = observer
        self._clock = clock
        self._pending: dict[int, _PendingVerdict] = {}
        self.is_closed = False

    @property
    def num_pending(self) -> int:
        """Number of requests whose last verdict has not come."""
        return len(self._pending)

    def send(self, frame: ClientFrame) -> None:
        match frame:
            case Draft(seq=seq, tree=tree):
                self._pending[seq] = _PendingVerdict(self._clock(), not len(tree), streams=False)
            case Decode(seq=seq):
                self._pending[seq] = _PendingVerdict(self._clock(), on_prompt=True, streams=True)
            case _:
                pass
        # Registered before it is sent: no verdict can come unexpected, and its time includes the sending.
        self._inner.send(frame)

    async def receive(self) -> ServerFrame:
        frame = await self._inner.receive()
        if isinstance(frame, Verdict):
            self._take(frame)
        return frame

    async def close(self) -> None:
        self.is_closed = True
        await self._inner.close()

    def _take(self, verdict: Verdict) -> None:
        now, pending = self._clock(), self._pending.get(verdict.seq)
        if pending is None:
            self._observer.on_stray()
            return
        self._observer.on_verdict(verdict, now - pending.at, on_prompt=pending.on_prompt)
        # A stream's next verdict is timed from this one, and only its first reads the prompt.
        pending.at, pending.on_prompt = now, False
        if not pending.streams or verdict.finish is not Finish.NOT_YET:
            del self._pending[verdict.seq]
