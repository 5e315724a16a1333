"""The requests of one answer and their replies: verdicts in order, and feature rows whenever they arrive."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from outrider_client.connection.link import Reply
from outrider_client.connection.session import ClientSession
from outrider_client.drafting.drafting_thread import AsyncDrafter
from outrider_client.generation.instruments import Instruments
from outrider_client.text.transcript import Transcript
from outrider_drafters.trees.grow import ScoredTree
from outrider_proto.errors import LinkError, Reason, Refusal, Violation
from outrider_proto.frames import Decode, Draft, Features, Finish, Verdict

EMPTY_DRAFT = ScoredTree()


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request, when it was sent (or its last verdict arrived), its draft, and the head that drafted it."""

    request: Draft | Decode
    at: float
    drafted: ScoredTree
    head: int
    stale: bool  # drafted without the newest features


@dataclass(frozen=True, slots=True)
class _Judged:
    """The newest request with a verdict: when the first one arrived, and how many bytes had arrived by then."""

    seq: int
    features_from: int
    at: float
    num_bytes: int
    until: int | None = None  # of a Decode: position after that verdict's rows; a draft's rows end with its last frame
    timed: bool = False


class RequestTracker:
    """Sends the requests of one answer and receives their replies. Times are seconds of the instruments' clock."""

    def __init__(
        self, session: ClientSession, transcript: Transcript, drafting: AsyncDrafter | None, instruments: Instruments
    ) -> None:
        self.newest: Draft | Decode | None = None
        self._session = session
        self._transcript = transcript
        self._drafting = drafting
        self._meter = instruments.meter
        self._controller = instruments.controller
        self._clock = instruments.clock
        self._judged = _Judged(0, 0, 0.0, 0)
        self._pending: dict[int, PendingRequest] = {}
        self._rows_due = 0  # seq of the newest draft with a verdict: its rows have arrived or are on their way
        self._rows_complete = 0  # seq of the newest draft whose rows have all arrived
        self._rows_arrived = asyncio.Event()
        self._early: deque[Verdict] = deque()  # verdicts that arrived and are not judged yet
        self._cancelled = 0  # seq of the newest Decode that was cancelled

    def send(self, request: Draft | Decode, drafted: ScoredTree = EMPTY_DRAFT, head: int = 0) -> None:
        root_at = request.base_len + len(request.context)
        self.newest = request
        stale = self._drafting is not None and self._uses_features and self._drafting.num_features < root_at
        self._pending[request.seq] = PendingRequest(request, self._clock(), drafted, head, stale)
        self._session.link.request(request, 0 if self._drafting is None else self._drafting.tap.width)

    def cancel(self, decode: Decode) -> None:
        """Ask the server to stop a Decode."""
        self._cancelled = decode.seq
        self._session.link.cancel(decode)

    async def next_verdict(self, timeout_s: float) -> tuple[PendingRequest, Verdict]:
        """Return the verdict on the oldest request, with that request. Raises LinkError."""
        while True:
            await self.rows_or_verdict(lambda: False, timeout_s)
            if not self._early:
                raise LinkError(f"no verdict within {timeout_s:g} s")
            verdict = self._early.popleft()
            if self._transcript.awaits(verdict.seq):
                return self._measured(verdict), verdict
            self._skip(verdict)

    @property
    def known_features(self) -> int:
        """Position before which no features need to be requested: they have arrived or will."""
        if self._drafting is None:
            return 0
        known = self._drafting.num_features
        return known if self._rows_complete >= self._rows_due else max(known, self._transcript.requested_len)

    async def await_rows(self) -> None:
        """Wait, while another task receives, until the rows of all verdicts so far have arrived."""
        due = self._rows_due if self._uses_features else 0
        while self._rows_complete < due:
            # Cleared in the loop, before the wait: another waiter may have been woken by the same set().
            self._rows_arrived.clear()
            await self._rows_arrived.wait()

    def lost(self) -> None:
        """Forget what was on its way when the link was lost."""
        self._rows_due = self._rows_complete
        self._early.clear()

    async def receive_rows(self, timeout_s: float) -> None:
        """Wait for the rows of the last draft with a verdict, at most `timeout_s`. Raises LinkError."""
        if not self._uses_features:
            return
        started = self._clock()
        give_up_at = started + timeout_s
        while self._rows_complete < self._rows_due and (left := give_up_at - self._clock()) > 0:
            if (reply := await self._session.link.receive(left)) is not None:
                self._take_early(reply)
        self._meter.wait_s += self._clock() - started

    async def rows_or_verdict(self, enough: Callable[[], bool], timeout_s: float) -> None:
        """Wait until enough rows or the next verdict have arrived. Raises LinkError."""
        # Useful rows extend the deadline, since the verdict shares the link with them. Nothing else does: a server that
        # sends junk for ever must not keep the answer waiting.
        give_up_at = self._clock() + timeout_s
        while not self._early and not enough():
            reply = await self._session.link.receive(give_up_at - self._clock())
            if reply is None:
                return
            if self._take_early(reply):
                give_up_at = self._clock() + timeout_s
            elif self._clock() >= give_up_at:
                return

    def take_arrived(self) -> None:
        """Take the rows of the previous answer that have arrived by now."""
        # A lost link is no error here: the next one that needs it will notice.
        with contextlib.suppress(LinkError, Refusal):
            while (reply := self._session.link.receive_nowait()) is not None:
                if isinstance(reply, Features):
                    self._take_rows(reply)

    @property
    def _uses_features(self) -> bool:
        return self._drafting is not None and bool(self._drafting.tap.fingerprint)

    def _take_early(self, reply: Reply) -> bool:
        """Take rows and queue a verdict; return whether rows were useful to the drafter."""
        if isinstance(reply, Features):
            return self._take_rows(reply)
        if self._transcript.awaits(reply.seq):
            self._early.append(reply)
        else:
            self._skip(reply)
        return False

    def _skip(self, verdict: Verdict) -> None:
        """Skip a verdict that is no longer awaited; count it if it says that a draft was stale."""
        # Verdicts of an earlier answer may still arrive: their seq is unknown here.
        if verdict.stale and verdict.seq in self._pending:
            self._meter.stale_drafts += 1

    def _measured(self, verdict: Verdict) -> PendingRequest:
        if verdict.finish is Finish.CANCELLED and verdict.seq != self._cancelled:
            raise Violation(Reason.MALFORMED_FRAME, f"verdict {verdict.seq} ends a request that was not cancelled")
        now = self._clock()
        pending = self._pending[verdict.seq]
        if self._judged.seq != verdict.seq:
            request = pending.request
            until = request.base_len + len(request.context) + 1 if isinstance(request, Decode) else None
            num_bytes = self._session.num_bytes[1]
            self._judged = _Judged(request.seq, request.features_from or 0, now, num_bytes, until)
        self._meter.verdict(verdict, now - pending.at, on_draft=bool(pending.drafted.tree.tokens))
        if pending.request.features_from is not None and verdict.finish is not Finish.CANCELLED:
            self._rows_due = verdict.seq  # a request cancelled before it began brings no rows
        if isinstance(pending.request, Draft):
            self._pending = {seq: other for seq, other in self._pending.items() if seq > verdict.seq}
        else:
            self._pending[verdict.seq] = replace(pending, at=now)  # the next token follows from here
        self._session.verdict_arrived()
        if verdict.finish is not Finish.CANCELLED:
            self._session.tree_budget = verdict.tree_budget
        return pending

    def _take_rows(self, features: Features) -> bool:
        """Take rows; return whether the drafter has more of them now."""
        before = 0 if self._drafting is None else self._drafting.num_features
        if self._drafting is not None:
            # Rows may arrive after the text they describe was rolled back; only those of valid tokens count.
            num_rows = self._transcript.num_usable_rows(features)
            self._drafting.add_features(features.first, features.rows[:num_rows])
        self._meter.tap_s += features.tap_us / 1e6
        self._time_rows(features)
        if features.last:
            self._rows_complete = max(self._rows_complete, features.seq)
            self._rows_arrived.set()
        return self._drafting is not None and self._drafting.num_features > before

    def _time_rows(self, features: Features) -> None:
        """Measure how long after its verdict a request's rows had all arrived."""
        judged, end = self._judged, features.first + len(features.rows)
        are_all = features.last if judged.until is None else end >= judged.until
        if features.seq == judged.seq and are_all and not judged.timed:
            self._judged = replace(judged, timed=True)
            lag_s, num_bytes = self._clock() - judged.at, self._session.num_bytes[1] - judged.num_bytes
            self._controller.record_features(lag_s, end - judged.features_from, num_bytes)
