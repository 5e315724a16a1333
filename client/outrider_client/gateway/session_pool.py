"""A pool of sessions with the server. A prompt gets the session that shares the longest prefix with it."""

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
    is_private: bool = False
    released_at: int = 0  # counts answers


class SessionPool:
    """Keep at most `size` sessions, opened by `make` with a drafter's name; `queue` requests may wait for one."""

    def __init__(self, make: Callable[[str], AsyncClient], size: int, queue: int) -> None:
        self.num_waiting = 0
        self._make = make
        self._size = size
        self._queue = queue
        self._sessions: list[_PooledSession] = []
        self._free = asyncio.Semaphore(size)
        self._num_answers = 0

    @property
    def clients(self) -> list[AsyncClient]:
        return [session.client for session in self._sessions]

    @property
    def num_running(self) -> int:
        return sum(not session.is_free for session in self._sessions)

    @property
    def num_using_link(self) -> int:
        """Answers in progress that use the link, and so show its state."""
        return sum(not session.is_free and not session.is_private for session in self._sessions)

    @contextlib.asynccontextmanager
    async def acquire(
        self, drafter: str, prompt: Sequence[int], *, is_private: bool = False
    ) -> AsyncIterator[AsyncClient]:
        """Lend a client for one answer, `is_private` if it uses no link. Raises ApiError 429 where too many wait."""
        await self._wait()
        try:
            session = self._take(drafter, prompt)
            session.is_private = is_private
            try:
                # Inside the try: a request cancelled while another session closes must give its own back.
                await self._close_surplus()
                yield session.client
            finally:
                self._num_answers += 1
                session.is_free, session.released_at = True, self._num_answers
        finally:
            self._free.release()

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, []
        await asyncio.gather(*(session.client.close() for session in sessions))

    async def _wait(self) -> None:
        if self._free.locked() and self.num_waiting >= self._queue:
            message = f"all {self._size} sessions are busy and {self.num_waiting} requests wait: try again later"
            raise ApiError(429, message, "rate_limit_error", code="rate_limit_exceeded", retry_after_s=1)
        self.num_waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.num_waiting -= 1

    def _take(self, drafter: str, prompt: Sequence[int]) -> _PooledSession:
        # No await from here to the marking as taken: another request could choose the same session.
        fitting = [session for session in self._sessions if session.is_free and session.drafter == drafter]
        # A session goes on where the prompt continues or restarts most of what it holds.
        best = max(fitting, key=lambda session: (_shared(session, prompt), -session.released_at), default=None)
        if best is not None and (
            len(self._sessions) == self._size or 2 * _shared(best, prompt) >= min(len(best.client.tokens), len(prompt))
        ):
            best.is_free = False
            return best
        session = _PooledSession(self._make(drafter), drafter)
        self._sessions.append(session)
        return session

    async def _close_surplus(self) -> None:
        """Close the session that has been free longest, if there is one too many."""
        if len(self._sessions) > self._size:
            session = min(
                (session for session in self._sessions if session.is_free), key=lambda session: session.released_at
            )
            self._sessions.remove(session)
            await session.client.close()


def _shared(session: _PooledSession, prompt: Sequence[int]) -> int:
    return common_prefix_len(session.client.tokens, prompt)
