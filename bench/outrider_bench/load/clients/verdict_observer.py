"""A connection that times every verdict and notices duplicate, unexpected and missing ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from outrider_bench.core.tapped_transport import TappedConnection
from outrider_client.connection.transport import Connection
from outrider_proto.frames import ClientFrame, Decode, Draft, Finish, ServerFrame, Verdict


@dataclass(slots=True)
class _PendingVerdict:
    at: float
    on_prompt: bool
    streams: bool  # a Decode: verdicts come until it has finished


class ObservedConnection(TappedConnection):
    """Calls `on_verdict` with every verdict, the seconds since its request, and whether that was a prompt's.

    `on_stray` is called for a verdict that belongs to no pending request.
    """

    def __init__(
        self, inner: Connection, on_verdict: Callable[[Verdict, float, bool], None], on_stray: Callable[[], None]
    ) -> None:
        super().__init__(inner)
        self._on_verdict, self._on_stray = on_verdict, on_stray
        self._pending: dict[int, _PendingVerdict] = {}
        self.is_closed = False

    @property
    def num_pending(self) -> int:
        """Number of requests whose last verdict has not come."""
        return len(self._pending)

    def send(self, frame: ClientFrame) -> None:
        match frame:
            case Draft(seq=seq, tree=tree):
                self._pending[seq] = _PendingVerdict(time.monotonic(), not len(tree), streams=False)
            case Decode(seq=seq):
                self._pending[seq] = _PendingVerdict(time.monotonic(), on_prompt=True, streams=True)
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
        now, pending = time.monotonic(), self._pending.get(verdict.seq)
        if pending is None:
            self._on_stray()
            return
        self._on_verdict(verdict, now - pending.at, pending.on_prompt)
        # A stream's next verdict is timed from this one, and only its first reads the prompt.
        pending.at, pending.on_prompt = now, False
        if not pending.streams or verdict.finish is not Finish.NOT_YET:
            del self._pending[verdict.seq]
