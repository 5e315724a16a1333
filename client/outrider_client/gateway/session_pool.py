"""Sessions with the server, lent to one answer each. A prompt goes to the session that knows most of it already."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from outrider_client.async_client import AsyncClient
from outrider_client.gateway.errors import ApiError
from outrider_proto.packing import common_prefix_len


@dataclass(slots=True)
class _PooledSession:
    client: AsyncClient
    drafter: str
    is_free: bool = False
    is_quiet: bool = False
    left_at: int = 0  # counts answers


class SessionPool:
    """At most `size` sessions, and `queue` answers that wait for one. `make` gives a client with the named drafter."""

    def __init__(self, make: Callable[[str], AsyncClient], size: int, queue: int) -> None:
        self.num_waiting = 0
        self._make = make
        self._size = size
        self._queue = queue
        self._seats: list[_PooledSession] = []
        self._room = asyncio.Semaphore(size)
        self._num_answers = 0

    @property
    def clients(self) -> list[AsyncClient]:
        return [seat.client for seat in self._seats]

    @property
    def num_running(self) -> int:
        return sum(not seat.is_free for seat in self._seats)

    @property
    def num_telling(self) -> int:
        """Answers under way that show where the link stands."""
        return sum(not seat.is_free and not seat.is_quiet for seat in self._seats)

    @contextlib.asynccontextmanager
    async def lend(self, drafter: str, prompt: Sequence[int], *, quiet: bool = False) -> AsyncIterator[AsyncClient]:
        """A client for one answer, `quiet` where that is written without the link. Raises ApiError 429 when all are
        busy and too many wait."""
        await self._wait()
        try:
            seat = self._seat(drafter, prompt)
            seat.is_quiet = quiet
            try:
                await self._give_up_surplus()
                yield seat.client
            finally:
                self._num_answers += 1
                seat.is_free, seat.left_at = True, self._num_answers
        finally:
            self._room.release()

    async def close(self) -> None:
        seats, self._seats = self._seats, []
        await asyncio.gather(*(seat.client.close() for seat in seats))

    async def _wait(self) -> None:
        if self._room.locked() and self.num_waiting >= self._queue:
            message = f"all {self._size} sessions are busy and {self.num_waiting} requests wait: try again later"
            raise ApiError(429, message, "rate_limit_error", code="rate_limit_exceeded")
        self.num_waiting += 1
        try:
            await self._room.acquire()
        finally:
            self.num_waiting -= 1

    def _seat(self, drafter: str, prompt: Sequence[int]) -> _PooledSession:
        fitting = [seat for seat in self._seats if seat.is_free and seat.drafter == drafter]
        best = max(fitting, key=lambda seat: (_shared(seat, prompt), -seat.left_at), default=None)
        if best is not None and (len(self._seats) == self._size or _goes_on(best, prompt)):
            best.is_free = False
            return best
        seat = _PooledSession(self._make(drafter), drafter)
        self._seats.append(seat)
        return seat

    async def _give_up_surplus(self) -> None:
        """The session that has rested longest, where there is one too many."""
        if len(self._seats) > self._size:
            seat = min((seat for seat in self._seats if seat.is_free), key=lambda seat: seat.left_at)
            self._seats.remove(seat)
            await seat.client.close()


def _shared(seat: _PooledSession, prompt: Sequence[int]) -> int:
    return common_prefix_len(seat.client.tokens, prompt)


def _goes_on(seat: _PooledSession, prompt: Sequence[int]) -> bool:
    """Whether the prompt goes on, or begins anew, what this session holds."""
    return 2 * _shared(seat, prompt) >= min(len(seat.client.tokens), len(prompt))
