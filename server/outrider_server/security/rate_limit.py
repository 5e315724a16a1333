"""Rate limits of keys: every request is charged for its rows, and delayed while its payer is over its rate.

Requests of one stream keep their order, however long each has to wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Features, Finish, Verdict
from outrider_server.scheduling.request import Reply, Request, RequestDone
from outrider_server.security.gcra import Gcra
from outrider_server.security.principal import Principal

_BURST_S = 10.0  # seconds' worth of the rate that may be used at once


class QuotaUsage:
    """One payer's use of its rate. Beyond `longest_wait_s` a request is refused rather than delayed."""

    def __init__(self, tokens_per_minute: int, longest_wait_s: float, clock: Callable[[], float]) -> None:
        self.tokens_per_minute = tokens_per_minute
        rate = tokens_per_minute / 60
        self._gcra = Gcra(rate, _BURST_S * rate)
        self._longest_wait_s = longest_wait_s
        self._clock = clock

    def charge(self, num_rows: int) -> float:
        """Charge rows; return the seconds to wait. Raises Refusal OVER_QUOTA, and charges nothing then."""
        wait_s = self._gcra.wait_s(now := self._clock())
        if wait_s > self._longest_wait_s:
            message = f"this key has {self.tokens_per_minute} tokens a minute, all used for the next {wait_s:.0f} s"
            raise Refusal(Reason.OVER_QUOTA, message, retry_after_s=wait_s)
        self._gcra.charge(num_rows, now)
        return wait_s

    def settle(self, num_rows: int) -> None:
        """Charge rows used beyond those paid; refund where negative."""
        if num_rows > 0:
            self._gcra.charge(num_rows, self._clock())
        else:
            self._gcra.refund(-num_rows)


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


@dataclass(slots=True)
class _Charge:
    paid: int
    used: int
    nodes: int | None  # drafted for each verdict of a decode; None for a draft, whose rows are known


class RateLimiter:
    """Delays the requests of one stream; `submit` takes those that are due. Without a usage it delays nothing."""

    def __init__(self, usage: QuotaUsage | None, submit: Callable[[Request], None]) -> None:
        self._usage = usage
        self._submit = submit
        self._waiting: deque[tuple[float, int, Request]] = deque()  # due (loop time), seq
        self._charges: dict[int, _Charge] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def submit_or_wait(self, request: Request, frame: Draft | Decode, room: int) -> None:
        """Submit now or later. `room`: tokens left in the context. Raises Refusal OVER_QUOTA."""
        if self._usage is None:
            self._submit(request)
            return
        entry = _charge_for(frame, room)
        wait_s = self._usage.charge(entry.paid)
        self._charges[frame.seq] = entry
        self._waiting.append((asyncio.get_running_loop().time() + wait_s, frame.seq, request))
        self._submit_due()

    def observe(self, seq: int, answer: Reply) -> None:
        """Count what a reply used, also one that came too late for the client: it was computed."""
        entry = self._charges.get(seq)
        if entry is None or self._usage is None:
            return
        match answer:
            case Verdict() if entry.nodes is not None and (answer.finish is not Finish.CANCELLED or answer.draft_us):
                entry.used += entry.nodes + len(answer.tokens) + (answer.bonus is not None)
                # An abandoned request that ends between passes sends no RequestDone: settle with every verdict.
                if self._closed:
                    self._settle(entry)
            case RequestDone() | Refusal():
                self._settle(entry)
                del self._charges[seq]
            case Verdict() | Features():
                pass

    def recheck(self) -> None:
        """Submit what is due, after a request was cancelled: it need not wait."""
        self._submit_due()

    def close(self) -> None:
        """Refund what never ran; a pass under way is charged when it ends. Safe to call twice."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, seq, _ in self._waiting:
            # It never reached the engine: close() refunds all of it.
            self._charges[seq].used = 0
        self._waiting.clear()
        for entry in self._charges.values():
            self._settle(entry)

    def _settle(self, entry: _Charge) -> None:
        assert self._usage is not None
        self._usage.settle(entry.used - entry.paid)
        entry.paid = entry.used

    def _submit_due(self) -> None:
        loop = asyncio.get_running_loop()
        # Only the head of the queue: a later request must not overtake it, even when it is due.
        while self._waiting and (self._waiting[0][2].is_stopped or self._waiting[0][0] <= loop.time()):
            self._submit(self._waiting.popleft()[2])
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._waiting[0][0], self._submit_due) if self._waiting else None


def _charge_for(frame: Draft | Decode, room: int) -> _Charge:
    """Return the rows to charge: of a draft exact, of a decode the most, settled at its end."""
    fixed = len(frame.context) + 1
    if isinstance(frame, Draft):
        rows = fixed + len(frame.tree)
        return _Charge(rows, rows, None)
    nodes = 0 if frame.tree is None else frame.tree.budget
    return _Charge(fixed + min(frame.max_tokens, max(room, 1)), fixed, nodes)
