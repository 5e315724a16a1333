"""One open connection: frames both ways, round-trip measurement and the watch for silence.

This is the asynchronous shell around heartbeat.py. What no request asked for (asked_for.py) is dropped as it arrives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from outrider_client.connection.asked_for import AskedFor, num_bytes_of
from outrider_client.connection.heartbeat import Heartbeat, RttEstimator
from outrider_client.connection.transport import Connection
from outrider_proto.errors import LinkError, OutriderError, Reason, Violation
from outrider_proto.frames import (
    Cancel,
    Close,
    Decode,
    Draft,
    Features,
    Open,
    Opened,
    Ping,
    Pong,
    Sampling,
    ServerFrame,
    Verdict,
)
from outrider_proto.packing import TOKEN_BYTES

_SLACK_S = 0.01  # by which timers are late anyway: forgiven, each wait would put the deadline off to the next
_TICK_S = 0.05  # between looks at how late our own event loop runs
_MAX_UNREAD_BYTES = 512 * 1024 * 1024  # more than a long prompt's features
_MAX_UNASKED_BYTES = 16 * 1024 * 1024  # between two requests: none of it is kept, but it takes time
_VALUE_BYTES = 1  # of a value of a feature row on the wire, about
Reply = Verdict | Features


class ServerLink:
    """A connection from Open to close. One task receives from it; pings go out while that task waits."""

    def __init__(
        self, connection: Connection, rtt: RttEstimator, heartbeat: Heartbeat, clock: Callable[[], float]
    ) -> None:
        self.connection = connection
        self._rtt = rtt
        self._heartbeat = heartbeat
        self._clock = clock
        self._arrived: deque[Opened | Reply | OutriderError] = deque()
        self._arrival = asyncio.Event()
        self._unread_bytes = 0
        self._asked_for = AskedFor()
        self._unasked_bytes = 0  # since the last request
        self._new_sampling: Sampling | None = None  # that the next request names
        self._reader = asyncio.create_task(self._read(), name="outrider link reader")

    @property
    def has_failed(self) -> bool:
        """Return whether the stream has ended; frames that arrived before may still be unread."""
        return bool(self._arrived) and isinstance(self._arrived[-1], OutriderError)

    async def open(self, frame: Open) -> Opened:
        """Send Open and return the server's answer; the caller sets the deadline."""
        started = self._clock()
        self.connection.send(frame)
        await self._arrival.wait()
        opened = self._take()
        assert isinstance(opened, Opened)
        now = self._clock()
        # Opening includes the server's own work, so it is only an upper bound; the first Ping measures the round trip.
        self._rtt.guess(now - started)
        self._ping(now)
        return opened

    def set_sampling(self, sampling: Sampling) -> None:
        """Have the next request change the stream's sampling; the server must allow it."""
        self._new_sampling = sampling

    def request(self, request: Draft | Decode, width: int) -> None:
        """Queue a request whose reply is awaited, with feature rows of `width` values; 0: without."""
        num_bytes, num_values = TOKEN_BYTES * len(request.context), self._asked_for.add(request, width)
        # The heartbeat allows for rows that come back: else a slow link that carries them would count as lost.
        self._heartbeat.begin(self._clock(), num_bytes, num_values * _VALUE_BYTES)
        self._unasked_bytes = 0
        if self._new_sampling is not None:
            request, self._new_sampling = replace(request, sampling=self._new_sampling), None
        self.connection.send(request)

    def cancel(self, decode: Decode) -> None:
        """Ask the server to stop a Decode; its last verdict is awaited."""
        self._heartbeat.begin(self._clock(), 0)
        self.connection.send(Cancel(decode.seq))

    async def receive(self, timeout_s: float) -> Reply | None:
        """Return the next verdict or features, or None after `timeout_s`. Raises LinkError or Refusal."""
        give_up_at = self._clock() + timeout_s
        while not self._arrived:
            if self._clock() >= give_up_at:
                return None
            await self._wait_until(min(give_up_at, self._heartbeat.due_at))
            self._check_silence()
        return self.receive_nowait()

    def receive_nowait(self) -> Reply | None:
        """Return what has arrived already, else None. Raises what `receive` does."""
        if not self._arrived:
            return None
        reply = self._take()
        assert not isinstance(reply, Opened)
        return reply

    async def send_close(self, timeout_s: float) -> None:
        """Send Close and wait for the server to end the stream."""
        self.connection.send(Close())
        await asyncio.wait({self._reader}, timeout=timeout_s)

    async def close(self) -> None:
        """Safe to call twice."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self.connection.close()

    async def _read(self) -> None:
        try:
            while True:
                self._arrived_now(await self.connection.receive())
        except asyncio.CancelledError:
            # The end of an event loop cancels this task, too: closed any later, gRPC would log errors about that loop.
            await self.connection.close()
            raise
        except OutriderError as error:
            self._put(error)
            if isinstance(error, Violation):  # whoever breaks the protocol need not be heard on
                await self.connection.close()
        except Exception as error:
            # Whatever it is, the task that waits for a frame must learn of it, or it would wait for ever.
            self._put(OutriderError(f"cannot receive: {error!r}"))
            raise

    def _arrived_now(self, frame: ServerFrame) -> None:
        """Sort a frame that has just arrived. Raises Violation."""
        # Pongs are handled here, not by the task that awaits a verdict: there may be none, and the time of arrival is
        # the measurement.
        self._heartbeat.heard(self._clock())
        if isinstance(frame, Pong):
            if not self._heartbeat.pong(frame.nonce, self._clock()):
                self._drop(frame)
            return
        if not self._asked_for.takes(frame):
            self._drop(frame)
            return
        if isinstance(frame, Verdict):
            self._heartbeat.verdict_arrived()
        elif isinstance(frame, Features):
            self._heartbeat.rows_arrived(frame.rows.size * _VALUE_BYTES, last=frame.last)
        self._unread_bytes += num_bytes_of(frame)
        if self._unread_bytes > _MAX_UNREAD_BYTES:
            raise Violation(Reason.FRAME_TOO_LARGE, "the server sends more than was requested")
        self._put(frame)

    def _drop(self, frame: ServerFrame) -> None:
        self._unasked_bytes += num_bytes_of(frame)
        if self._unasked_bytes > _MAX_UNASKED_BYTES:
            raise Violation(Reason.FRAME_TOO_LARGE, "the server goes on to send what no request asked for")

    async def _wait_until(self, due: float) -> None:
        """Wait until something has arrived, at most until `due` or the next tick."""
        due = min(due, self._clock() + _TICK_S)
        try:
            async with asyncio.timeout(max(due - self._clock(), 0.0)):
                await self._arrival.wait()
        except TimeoutError:
            # A busy machine, or a laptop that slept, looks like silence but says nothing about the link.
            late_s = self._clock() - due
            if late_s > _SLACK_S:
                self._heartbeat.ran_late(late_s)

    def _check_silence(self) -> None:
        now = self._clock()
        # Frames first: after a stall the Pong may lie in the queue while its deadline has passed.
        if self._arrived:
            return
        if self._heartbeat.is_lost(now):
            raise LinkError(f"no sign of life for {self._heartbeat.deadline_s * 1000:.0f} ms")
        if self._heartbeat.should_ping(now):
            self._ping(now)

    def _ping(self, now: float) -> None:
        self.connection.send(Ping(self._heartbeat.ping(now)))

    def _put(self, arrived: Opened | Reply | OutriderError) -> None:
        self._arrived.append(arrived)
        self._arrival.set()

    def _take(self) -> Opened | Reply:
        """Remove and return the oldest arrival. A failure is raised and stays for the next caller."""
        arrived = self._arrived[0]
        if isinstance(arrived, OutriderError):
            raise arrived
        self._arrived.popleft()
        self._unread_bytes -= num_bytes_of(arrived)
        if not self._arrived:
            self._arrival.clear()
        return arrived
