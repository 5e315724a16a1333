"""Rate limits of keys: every request pays for its rows, and waits while its payer is over its rate.

A payer's requests wait in one line over all its streams, and pay when their turn comes: what one of them did not use
after all brings those behind it forward. A Decode pays as it goes, some rows at a time, and pauses where it cannot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Features, Finish, Verdict
from outrider_server.scheduling.reply_poster import Reply, RequestDone, RowsAgain
from outrider_server.scheduling.request import Request
from outrider_server.security.gcra import Gcra
from outrider_server.security.principal import Principal

_BURST_S = 10.0  # seconds' worth of the rate that may be used at once
_STEP_ROWS = 64  # that a Decode pays for at a time
_STALE_ROWS = 1  # of a draft that was stale: it took no pass


@dataclass(slots=True, eq=False)
class _Charge:
    """The rows of one request: `used` so far, and `paid` for."""

    request: Request
    fixed: int  # used at its start
    pass_rows: int | None = None  # the most that one pass of a Decode takes; None for a Draft, whose rows are known
    tokens_left: int = 0  # of a Decode
    drafted: int = 0  # by the server's drafter, and counted
    used: int = 0
    paid: int = 0
    due: int = 0  # rows that it pays for when its turn comes
    go: Callable[[_Charge], None] | None = None  # called then; None where it does not wait


class QuotaUsage:
    """One payer's use of its rate, and the line of those who wait for it. For the event loop.

    Beyond `longest_wait_s` a request is refused rather than delayed.
    """

    def __init__(self, tokens_per_minute: int, longest_wait_s: float, clock: Callable[[], float]) -> None:
        self.tokens_per_minute = tokens_per_minute
        self._rate = tokens_per_minute / 60
        self._gcra = Gcra(self._rate, _BURST_S * self._rate)
        self._longest_wait_s = longest_wait_s
        self._clock = clock
        self._line: deque[_Charge] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def check(self) -> None:
        """Raise Refusal OVER_QUOTA where one more request would have to wait too long."""
        wait_s = self._gcra.wait_s(self._clock()) + sum(charge.due for charge in self._line) / self._rate
        if wait_s > self._longest_wait_s:
            message = f"this key has {self.tokens_per_minute} tokens a minute, all used for the next {wait_s:.0f} s"
            raise Refusal(Reason.OVER_QUOTA, message, retry_after_s=wait_s)

    def queue(self, charge: _Charge) -> None:
        """Let it pay and go now, or when its turn comes."""
        self._line.append(charge)
        self._advance()

    def drop(self, charge: _Charge) -> None:
        """Take one out of the line that no longer waits."""
        self._line.remove(charge)
        charge.go = None
        self._advance()

    def settle(self, num_rows: int) -> None:
        """Charge rows used beyond those paid; refund where negative."""
        if num_rows > 0:
            self._gcra.charge(num_rows, self._clock())
        else:
            self._gcra.refund(-num_rows)
            self._advance()

    def _advance(self) -> None:
        """Let those go whose turn has come, and come back when the next one is due."""
        while self._line and self._gcra.wait_s(now := self._clock()) <= 0:
            charge = self._line.popleft()
            self._gcra.charge(charge.due, now)
            charge.paid += charge.due
            go, charge.go = charge.go, None
            assert go is not None
            go(charge)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._line:
            wait_s = self._gcra.wait_s(self._clock())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._advance)


class Quotas:
    """The usage of each payer that has a rate."""

    def __init__(self, longest_wait_s: float, clock: Callable[[], float]) -> None:
        self._longest_wait_s = longest_wait_s
        self._clock = clock
        self._of: dict[str, QuotaUsage] = {}

    def of(self, principal: Principal) -> QuotaUsage | None:
        """Return a principal's usage, None without a rate. A changed rate starts from zero."""
        rate = principal.quota.tokens_per_minute
        if rate is None:
            return None
        usage = self._of.get(principal.payer)
        if usage is None or usage.tokens_per_minute != rate:
            usage = self._of[principal.payer] = QuotaUsage(rate, self._longest_wait_s, self._clock)
        return usage


class RateLimiter:
    """Delays the requests of one stream; `submit` takes those whose turn has come. Without a usage none waits."""

    def __init__(self, usage: QuotaUsage | None, submit: Callable[[Request], None]) -> None:
        self._usage = usage
        self._submit = submit
        self._charges: dict[int, _Charge] = {}  # by seq
        self._closed = False

    def submit_or_wait(self, request: Request, frame: Draft | Decode, room: int) -> None:
        """Submit now or later. `room`: tokens left in the context. Raises Refusal OVER_QUOTA."""
        if self._usage is None:
            self._submit(request)
            return
        self._usage.check()
        charge = self._charges[frame.seq] = _charge_for(request, frame, room)
        self._wait(charge, charge.fixed + min(_STEP_ROWS, charge.tokens_left), self._begin)

    def charge(self, num_rows: int) -> None:
        """Pay for work beside the requests, at once. Raises Refusal OVER_QUOTA."""
        if self._usage is not None:
            self._usage.check()
            self._usage.settle(num_rows)

    def is_short(self, seq: int) -> bool:
        """Return whether a request has used what it paid for, and must wait. From any thread."""
        charge = self._charges.get(seq)
        return charge is not None and charge.go is not None and charge.used >= charge.paid

    def observe(self, seq: int, answer: Reply) -> None:
        """Count what a reply used, also one that came too late for the client: it was computed."""
        charge = self._charges.get(seq)
        if charge is None or self._usage is None:
            return
        match answer:
            case Verdict():
                self._count(charge, answer)
            case RowsAgain():
                self._usage.settle(answer.num_rows)
            case RequestDone() | Refusal():
                self._settle(charge)
                del self._charges[seq]
            case Features():
                pass

    def recheck(self) -> None:
        """Submit the first requests in line that were cancelled: they need not wait, and cost nothing."""
        for charge in [charge for charge in self._charges.values() if charge.go is not None]:
            # Only the first: a later request must not overtake one that still waits.
            if not charge.request.is_stopped or self._usage is None or charge.go is None:
                return
            go = charge.go
            self._usage.drop(charge)
            go(charge)

    def close(self) -> None:
        """Refund what never ran; a pass under way is charged when it ends. Safe to call twice."""
        self._closed = True
        for charge in self._charges.values():
            self._settle(charge)

    def _wait(self, charge: _Charge, rows: int, go: Callable[[_Charge], None]) -> None:
        """Pay `rows` for it and call `go`, now or when its turn comes."""
        assert self._usage is not None
        charge.due, charge.go = rows, go
        self._usage.queue(charge)

    def _begin(self, charge: _Charge) -> None:
        charge.used = 0 if charge.request.is_stopped else charge.fixed  # what was cancelled before runs no pass
        self._submit(charge.request)

    def _count(self, charge: _Charge, verdict: Verdict) -> None:
        """Count a verdict's rows; of a draft they are known before, unless it was stale."""
        if verdict.stale:
            charge.used = _STALE_ROWS
        if charge.pass_rows is None:
            return
        num_tokens, drafted = len(verdict.tokens) + (verdict.bonus is not None), charge.request.num_drafted
        charge.tokens_left -= num_tokens
        charge.used += num_tokens + drafted - charge.drafted
        charge.drafted = drafted
        # An abandoned request that ends between passes sends no RequestDone: settle with every verdict.
        if self._closed:
            self._settle(charge)
        elif verdict.finish is Finish.NOT_YET:
            self._pay_ahead(charge)

    def _pay_ahead(self, charge: _Charge) -> None:
        """Pay for the next rows of a Decode before it has used all it paid for, so that it need not stop."""
        assert charge.pass_rows is not None
        step = min(_STEP_ROWS, charge.tokens_left * charge.pass_rows)
        rows = charge.used - charge.paid + step
        if charge.go is None and rows > max(0, step - _STEP_ROWS // 2):
            self._wait(charge, rows, lambda _: None)

    def _settle(self, charge: _Charge) -> None:
        assert self._usage is not None
        if charge.go is not None:
            self._usage.drop(charge)
        self._usage.settle(charge.used - charge.paid)
        charge.paid = charge.used


def _charge_for(request: Request, frame: Draft | Decode, room: int) -> _Charge:
    """Return the rows to charge: of a draft all, of a decode those of its context; its tokens follow."""
    fixed = len(frame.context) + 1
    if isinstance(frame, Draft):
        return _Charge(request, fixed + len(frame.tree))
    tree = frame.tree
    pass_rows = 1 if tree is None else 1 + tree.budget + tree.most_expanded
    return _Charge(request, fixed, pass_rows, min(frame.max_tokens, max(room, 1)))
