"""A transport that times every verdict and notices those that come twice, unasked or never."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outrider_client.connection.transport import Connection, Transport
from outrider_proto.frames import ClientFrame, Decode, Draft, Finish, ServerDescription, ServerFrame, Verdict


class Watcher(Protocol):
    """What is told of the wire."""

    def judged(self, verdict: Verdict, seconds: float, *, on_prompt: bool) -> None:
        """A verdict came so long after it was asked for."""
        ...

    def stray(self) -> None:
        """A verdict came that nobody waited for."""
        ...


@dataclass(slots=True)
class _Asked:
    at: float
    on_prompt: bool
    goes_on: bool  # a Decode: verdicts come until it has finished


class WatchedConnection:
    """See the client's Connection."""

    def __init__(self, inner: Connection, watcher: Watcher, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._watcher = watcher
        self._clock = clock
        self._asked: dict[int, _Asked] = {}
        self.is_closed = False

    @property
    def bytes_up(self) -> int:
        return self._inner.bytes_up

    @property
    def bytes_down(self) -> int:
        return self._inner.bytes_down

    @property
    def num_owed(self) -> int:
        """Requests whose last verdict has not come."""
        return len(self._asked)

    def send(self, frame: ClientFrame) -> None:
        match frame:
            case Draft(seq=seq, tree=tree):
                self._asked[seq] = _Asked(self._clock(), not len(tree), goes_on=False)
            case Decode(seq=seq):
                self._asked[seq] = _Asked(self._clock(), on_prompt=True, goes_on=True)
            case _:
                pass
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
        now, asked = self._clock(), self._asked.get(verdict.seq)
        if asked is None:
            self._watcher.stray()
            return
        self._watcher.judged(verdict, now - asked.at, on_prompt=asked.on_prompt)
        asked.at, asked.on_prompt = now, False
        if not asked.goes_on or verdict.finish is not Finish.NOT_YET:
            del self._asked[verdict.seq]


class WatchedTransport:
    """Connections of another transport, watched."""

    def __init__(self, inner: Transport, watcher: Watcher, clock: Callable[[], float] = time.monotonic) -> None:
        self.address = inner.address
        self._inner = inner
        self._watcher = watcher
        self._clock = clock
        self._newest: WatchedConnection | None = None

    @property
    def num_owed(self) -> int:
        """By the connection that stands; nothing is owed by one that is gone."""
        return 0 if self._newest is None or self._newest.is_closed else self._newest.num_owed

    async def connect(self) -> WatchedConnection:
        self._newest = WatchedConnection(await self._inner.connect(), self._watcher, self._clock)
        return self._newest

    async def describe(self) -> ServerDescription:
        return await self._inner.describe()

    async def close(self) -> None:
        await self._inner.close()
