"""The writing half of one client's stream: frames waiting to be sent, requests under way, and how it will end.

For the event loop; knows neither gRPC nor the model. Features wait apart and leave in small pieces when nothing else is
waiting, so that no verdict waits behind a prompt's features; more rows are taken from the session's memory as they
leave. What waits for a client that does not read is bounded: first its frames are no longer read and its requests
pause, then the stream ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import assert_never

from outrider_proto.errors import Reason, Refusal, Violation
from outrider_proto.frames import Features, ServerFrame, Verdict
from outrider_server.engine.sampler import Sampler
from outrider_server.scheduling.feature_feed import FeatureFeed
from outrider_server.scheduling.reply_poster import Reply, RequestDone, RowsAgain
from outrider_server.scheduling.request import Request
from outrider_server.security.principal import ANONYMOUS, Principal
from outrider_server.sessions.session_table import Session
from outrider_server.telemetry.observer import StreamObserver

# Beyond any of these limits no more frames are read from the client, and HTTP/2 flow control slows it down.
_MAX_WAITING_FRAMES = 256
_MAX_UNREAD_BYTES = 16 * 1024 * 1024
_MAX_REQUESTS = 32
_FRAME_BYTES = 256  # approximate size of a frame without its rows
ROOM_BYTES = 2 * _MAX_UNREAD_BYTES  # allowed to wait: replies to requests read before the limit was hit
_ALL_ROWS_BYTES = 256 * 1024 * 1024  # of features that wait, of all sessions together
_MOST_ROWS_BYTES = _MAX_UNREAD_BYTES // 4  # and of one
_LEAST_ROWS_BYTES = 64 * 1024
_PIECE_VALUES = 16 * 1024  # of features; 16 KiB at a byte each


class StreamWriter:
    """Sends frames, in order but for features; ends normally or with a Refusal."""

    def __init__(self, watch: StreamObserver | None = None, principal: Principal = ANONYMOUS) -> None:
        self.principal = principal
        self.watch = watch or StreamObserver()
        self.session: Session | None = None
        self.sampler: Sampler | None = None
        self.faulty = False  # whether the session's state can no longer be trusted
        self._frames: deque[ServerFrame] = deque()
        self._features: deque[Features] = deque()
        self._row_bytes = 0  # of the features that wait
        self._feed: FeatureFeed | None = None
        self._pull: Callable[[FeatureFeed], None] = lambda feed: None
        self._has_more_rows = False  # in the session's memory
        self._must_pull = False  # once there is room
        self._requests: dict[int, Request] = {}
        self._last_seq = -1
        self.refusal: Refusal | None = None  # that it ends with, as far as known
        self.is_ending = False  # no further frames should be taken from the client
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()

    @property
    def waiting_bytes(self) -> int:
        """Approximate bytes that wait to be read."""
        return self._row_bytes + _FRAME_BYTES * (len(self._frames) + len(self._features))

    @property
    def is_busy(self) -> bool:
        """True while requests are under way, or their features have not left."""
        return bool(self._requests or self._features or self._has_more_rows)

    @property
    def is_unread(self) -> bool:
        """True if so many verdicts wait that the client cannot be reading. From any thread.

        Features do not count: no verdict waits for them, and only so many leave the session's memory before their time.
        """
        return len(self._frames) >= _MAX_WAITING_FRAMES

    def attach(self, feed: FeatureFeed, pull: Callable[[FeatureFeed], None]) -> None:
        """Take rows from `feed`; `pull` has it go on after rows_left()."""
        self._feed, self._pull = feed, pull

    def rows_left(self) -> None:
        """Have the feed go on once there is room: it has more rows."""
        if self._feed is not None and not self._feed.abandoned:
            self._has_more_rows = self._must_pull = True
            self._pull_rows()

    def rows_ended(self) -> None:
        """Wait for no more rows: the feed has posted all."""
        self._has_more_rows = False
        self._changed.set()

    def send(self, frame: ServerFrame) -> None:
        """Queue a frame. Ends the stream when more waits than would for a client that reads."""
        if isinstance(frame, Features):
            self._features.append(frame)
            self._row_bytes += frame.rows.nbytes
        else:
            self._frames.append(frame)
        if self.waiting_bytes > ROOM_BYTES:
            self._drop()
            self.fail(Refusal(Reason.STALLED, "too much waited to be read: connect again and resume"))
        self._changed.set()

    def check_seq(self, seq: int) -> None:
        """Raise Violation unless `seq` is larger than all before it."""
        if seq <= self._last_seq:
            raise Violation(Reason.BAD_SEQUENCE, f"seq={seq} after {self._last_seq}: it must grow within a stream")
        self._last_seq = seq

    def start(self, seq: int, request: Request) -> None:
        self._requests[seq] = request

    def cancel(self, seq: int) -> None:
        """Cancel a request that is still under way."""
        if seq in self._requests:
            self._requests[seq].cancelled = True

    def deliver(self, seq: int, answer: Reply) -> None:
        """Take the engine's reply to request `seq`; ignore it after the stream was abandoned."""
        if seq not in self._requests:
            # Of a request that has ended, what had no room then.
            if isinstance(answer, Features) and self._has_more_rows:
                self.send(answer)
            return
        self.watch.answered(seq, answer)
        match answer:
            case Verdict() | Features():
                self.send(answer)
            case Refusal():
                self.faulty = answer.reason is Reason.INTERNAL
                self.fail(answer)
            case RowsAgain():
                pass
            case RequestDone():
                del self._requests[seq]
                self._changed.set()
                self._has_room.set()
            case _:
                assert_never(answer)

    def fail(self, refusal: Refusal) -> None:
        """End with `refusal`, and drop all requests under way."""
        self.abandon()
        self.wind_down(refusal)

    def wind_down(self, refusal: Refusal | None = None) -> None:
        """End, with `refusal` or normally, once all requests under way are answered."""
        self.refusal = self.refusal or refusal
        self.is_ending = True
        self._changed.set()

    def abandon(self) -> None:
        """Drop all requests under way."""
        for request in self._requests.values():
            request.abandoned = True
        self._requests.clear()
        if self._feed is not None:
            self._feed.abandoned = True
        self._has_more_rows = self._must_pull = False
        self._changed.set()
        self._has_room.set()

    def close(self) -> None:
        """Drop all that waits: the session may keep its last request, which keeps this writer alive."""
        self.abandon()
        self._drop()

    async def room(self) -> None:
        """Wait until the client has read enough."""
        while self._is_behind:
            # Clear before waiting, and test again after it: several events share this one.
            self._has_room.clear()
            await self._has_room.wait()

    async def frames(self) -> AsyncGenerator[ServerFrame]:
        """Yield what to send, until the stream ends. Raises the Refusal it ends with."""
        while True:
            while (frame := self._next()) is not None:
                self._has_room.set()
                yield frame
            if self.is_ending and not self._requests and not self._has_more_rows:
                break
            # No await between the checks above and clear(): a change in between would be lost.
            self._changed.clear()
            await self._changed.wait()
        if self.refusal is not None:
            raise self.refusal

    @property
    def _is_behind(self) -> bool:
        return (
            len(self._frames) + len(self._features) >= _MAX_WAITING_FRAMES
            or self.waiting_bytes >= _MAX_UNREAD_BYTES
            or len(self._requests) >= _MAX_REQUESTS
        )

    def _drop(self) -> None:
        self._frames.clear()
        self._features.clear()
        self._row_bytes = 0

    def _next(self) -> ServerFrame | None:
        if self._frames:
            return self._frames.popleft()
        if not self._features:
            return None
        piece = self._piece()
        self._row_bytes -= piece.rows.nbytes
        if self._feed is not None:
            self._feed.taken_bytes += piece.rows.nbytes
            self._pull_rows()
        return piece

    def _pull_rows(self) -> None:
        # Half of the room at a time: the engine thread is woken for it.
        if self._feed is not None and self._must_pull and 2 * self._row_bytes <= self._feed.max_bytes:
            self._must_pull = False
            self._pull(self._feed)

    def _piece(self) -> Features:
        """Return the first rows of the features that wait longest."""
        waiting = self._features.popleft()
        count = max(1, _PIECE_VALUES // max(waiting.rows.shape[1], waiting.padded_width, 1))
        if len(waiting.rows) <= count:
            return waiting
        waiting = replace(waiting, of_rows=max(waiting.of_rows, len(waiting.rows)))
        self._features.appendleft(replace(waiting, first=waiting.first + count, rows=waiting.rows[count:]))
        return replace(waiting, rows=waiting.rows[:count], last=False, tap_us=0)


def max_row_bytes(max_sessions: int) -> int:
    """Return how many bytes of features may wait in each stream."""
    return max(min(_ALL_ROWS_BYTES // max_sessions, _MOST_ROWS_BYTES), _LEAST_ROWS_BYTES)
