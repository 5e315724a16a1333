"""The session with one server over any number of connections: it connects, notices losses, reconnects and resumes."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from outrider_client.connection.heartbeat import Heartbeat, RttEstimator
from outrider_client.connection.link import ServerLink
from outrider_client.connection.link_state import LinkState, check_transition
from outrider_client.connection.policy import ConnectionPolicy
from outrider_client.connection.transport import Transport
from outrider_client.text.transcript import Transcript
from outrider_proto.errors import LinkError, Reason, Refusal, is_transient
from outrider_proto.frames import Open, Opened, Sampling

_MAX_FRUITLESS = 8  # connections in a row that opened but brought no verdict
T = TypeVar("T")
Watcher = Callable[[LinkState, str], None]


def retry_after_s(error: Exception) -> float:
    """Return how long a refusal asks us to wait, in seconds."""
    return error.retry_after_s or 0.0 if isinstance(error, Refusal) else 0.0


class SilenceError(LinkError):
    """The server neither answered nor refused in time."""


class ClientSession:
    """State of the link, the current connection and the server's limits; the tokens are in the transcript."""

    def __init__(
        self,
        transport: Transport,
        open_frame: Open,
        transcript: Transcript,
        policy: ConnectionPolicy,
        clock: Callable[[], float],
        generator: random.Random,
    ) -> None:
        self.state = LinkState.CONNECTING
        self.tree_budget = 0  # nodes in a draft that the busy server asks for at most; 0: no limit
        self.rtt = RttEstimator()
        self.watcher: Watcher = lambda state, detail: None
        self._transport = transport
        self._open_frame = open_frame
        self._transcript = transcript
        self._policy = policy
        self._clock = clock
        self._generator = generator
        self._link: ServerLink | None = None
        self.limits: Opened | None = None  # the server's answer to Open; None before the first connection
        self._target_digest = ""  # "": not known
        self.has_other_target = False  # than before, and nobody has acted on it yet
        self._patience_factor = 1.0
        self._num_failures = 0
        self._num_fruitless = 0  # connections since the last verdict
        self._fruitless_since = 0.0
        self._bytes_before = (0, 0)  # on connections that are gone

    @property
    def link(self) -> ServerLink:
        """The current connection. Raises LinkError if there is none."""
        if self._link is None:
            raise LinkError(f"{self._transport.address}: not connected")
        return self._link

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection, as far as is known."""
        return self._link is not None

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes sent and received over all connections."""
        up, down = self._bytes_before
        if self._link is not None:
            up, down = up + self._link.connection.bytes_up, down + self._link.connection.bytes_down
        return up, down

    async def connect(self) -> None:
        """Keep the current connection or open one. Raises LinkError or Refusal."""
        if self._link is not None and self._link.has_failed:
            await self.disconnect("the connection broke while idle")
        if self._link is None:
            timeouts = self._policy.timeouts
            await self._open(timeouts.connect_s, timeouts.open_s)

    async def start(self, *, offline_start: bool) -> None:
        """Connect. Raises LinkError, unless the session existed before or `offline_start` allows to go without it."""
        try:
            await self.connect()
        except LinkError:
            if self.limits is None and not offline_start:
                raise

    async def set_sampling(self, sampling: Sampling) -> None:
        """Use `sampling` from the next request on."""
        if sampling == self._open_frame.sampling:
            return
        self._open_frame = replace(self._open_frame, sampling=sampling)
        if self._link is None:
            return
        self._check_rules()
        if self.limits is not None and self.limits.request_sampling:
            self._link.set_sampling(sampling)
        else:  # an older server, whose streams have one sampling each
            await self._close_connection()

    async def disconnect(self, detail: str) -> None:
        await self._close_connection()
        if self.state is not LinkState.OFFLINE:
            self._change_state(LinkState.OFFLINE, detail)

    @property
    def first_attempt_s(self) -> float:
        """Seconds that the first attempt to reconnect may still take; 0 once one has failed."""
        return 0.0 if self._num_failures else self._attempt_s

    async def reconnect(self, after_s: float = 0.0) -> None:
        """Retry until connected, not before `after_s`. Raises Refusal when the server rejects the session."""
        self._num_failures = 0
        failure: LinkError | Refusal | None = None
        for attempt in itertools.count():
            silent = isinstance(failure, SilenceError)
            # Connections that open and break at once count as failed attempts: else such a server would be hammered.
            tried = attempt + max(self._num_fruitless - 1, 0)
            delay_s = self._policy.backoff.delay_s(tried, self._generator, after_silence=silent)
            await asyncio.sleep(max(delay_s, after_s if failure is None else retry_after_s(failure)))
            # A link that is back at the first attempt was given up too soon: tolerate twice the silence from now on.
            self._patience_factor = self._patience_factor * 2 if attempt == 0 else 1.0
            failure = await self._attempt(attempt)
            if failure is None:
                return
            self._num_failures += 1

    def caught_up(self) -> None:
        """Note that the server holds the session's tokens again."""
        if self.state is LinkState.RESUMING:
            self._change_state(LinkState.ONLINE)

    def verdict_arrived(self) -> None:
        """Note that a verdict arrived: the link works."""
        self._patience_factor = 1.0
        self._num_fruitless = 0

    def makes_no_progress(self, seconds: float) -> bool:
        """Return whether connections have opened for this long without one bringing a verdict."""
        return self._num_fruitless >= _MAX_FRUITLESS and self._clock() - self._fruitless_since >= seconds

    async def close(self) -> None:
        """Tell the server, if that is quick, and close. Safe to call twice."""
        link, self._link = self._link, None
        if link is not None:
            await link.send_close(self._policy.timeouts.goodbye_s)
            await link.close()
        if self.state is not LinkState.CLOSED:
            self._change_state(LinkState.CLOSED)

    async def reset(self) -> None:
        """Start a new session with the next answer, such as after a refusal."""
        if self._link is not None:
            await self.disconnect("refused")
        self._open_frame = replace(self._open_frame, session_id="")

    def leave_loop(self) -> None:
        """Drop a connection whose event loop has ended; the next answer resumes on another one."""
        # Nothing to await: the end of that loop has ended its tasks, and the link's reader closes the connection.
        if self._link is not None:
            self._link = None
            self._change_state(LinkState.OFFLINE, "the event loop has ended")

    async def _close_connection(self) -> None:
        """Close the connection; the next one resumes from there."""
        link, self._link = self._link, None
        if link is not None:
            up, down = self._bytes_before
            self._bytes_before = up + link.connection.bytes_up, down + link.connection.bytes_down
            await link.close()

    async def _attempt(self, number: int) -> LinkError | Refusal | None:
        """Try once to reconnect; return the error if that failed. Raises a Refusal that retrying will not change."""
        open_s = min(self._attempt_s * 2.0 ** min(number, 16), self._policy.timeouts.open_s)
        try:
            await self._open(self._attempt_s, open_s)
        except (LinkError, Refusal) as error:
            if not is_transient(error):
                raise
            return error
        return None

    async def _open(self, connect_s: float, open_s: float) -> None:
        # The heartbeat is new with each connection, the RTT estimate is not: it belongs to the path.
        connection = await self._in_time(connect_s, self._transport.connect())
        heartbeat = Heartbeat(self.rtt, self._policy.patience, self._patience_factor)
        link = ServerLink(connection, self.rtt, heartbeat, self._clock)
        if self.state is LinkState.OFFLINE:
            self._change_state(LinkState.RESUMING)
        committed_len = self._transcript.resumable_len if self._open_frame.session_id else 0
        try:
            opened = await self._in_time(open_s, link.open(replace(self._open_frame, committed_len=committed_len)))
        except BaseException as error:  # cancellation too: a half-open connection would leak its reader task
            await link.close()
            if self.state is LinkState.RESUMING:
                self._change_state(LinkState.OFFLINE, str(error))
            raise
        self._adopt(link, opened)

    async def _in_time(self, seconds: float, step: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await step
        except TimeoutError as error:
            raise SilenceError(f"{self._transport.address}: no answer within {seconds:g} s") from error

    def _adopt(self, link: ServerLink, opened: Opened) -> None:
        self._link = link
        digest = opened.target_digest or self._target_digest  # older servers tell none
        self.has_other_target |= bool(self._target_digest) and digest != self._target_digest
        self._target_digest = digest
        self.limits = opened
        self._check_rules()
        self.tree_budget = 0  # a limit from an earlier connection no longer applies
        if not self._num_fruitless:
            self._fruitless_since = self._clock()
        self._num_fruitless += 1
        self._open_frame = replace(self._open_frame, session_id=opened.session_id)
        self._transcript.resume(opened)
        if self.state is LinkState.CONNECTING:
            self._change_state(LinkState.ONLINE)

    def _check_rules(self) -> None:
        """Raise Refusal for rules that the server would pass over."""
        sampling = self._open_frame.sampling
        if (sampling.rules or sampling.min_p) and self.limits is not None and not self.limits.token_rules:
            raise Refusal(
                Reason.BAD_SAMPLING, "this server knows no json_schema, penalties, logit_bias and min_p: update it"
            )

    @property
    def _attempt_s(self) -> float:
        return max(self._policy.timeouts.reconnect_s, 6 * (self.rtt.mean_s or 0.0))

    def _change_state(self, state: LinkState, detail: str = "") -> None:
        check_transition(self.state, state)
        self.state = state
        self.watcher(state, detail)
