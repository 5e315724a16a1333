"""The toll of one stream: each job pays for its rows before it goes to the model, and waits at the gate while its payer
is over its rate. Jobs pass in the order they came, whatever each has to wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Features, Finish, Verdict
from outrider_server.scheduling.request import Answer, Done, Job
from outrider_server.security.gcra import Gcra
from outrider_server.security.principal import Principal

_BURST_S = 10.0  # of earnings that may be spent at once


class Allowance:
    """One payer's rate. `longest_wait_s`: beyond it, a request is refused rather than delayed."""

    def __init__(self, tokens_per_minute: int, longest_wait_s: float, clock: Callable[[], float]) -> None:
        self.tokens_per_minute = tokens_per_minute
        rate = tokens_per_minute / 60
        self._gcra = Gcra(rate, _BURST_S * rate)
        self._longest_wait_s = longest_wait_s
        self._clock = clock

    def pay(self, num_rows: int) -> float:
        """Charge, and say how many seconds to wait. Raises Refusal OVER_QUOTA, and charges nothing then."""
        wait_s = self._gcra.wait_s(now := self._clock())
        if wait_s > self._longest_wait_s:
            message = f"this key has {self.tokens_per_minute} tokens a minute, all used for the next {wait_s:.0f} s"
            raise Refusal(Reason.OVER_QUOTA, message, retry_after_s=wait_s)
        self._gcra.charge(num_rows, now)
        return wait_s

    def settle(self, num_rows: int) -> None:
        """Charge what came to more than was paid; or give back, where negative."""
        if num_rows > 0:
            self._gcra.charge(num_rows, self._clock())
        else:
            self._gcra.refund(-num_rows)


class Allowances:
    """By payer. As many as there are keys with a rate."""

    def __init__(self, longest_wait_s: float, clock: Callable[[], float]) -> None:
        self._longest_wait_s = longest_wait_s
        self._clock = clock
        self._of: dict[str, Allowance] = {}

    def of(self, principal: Principal) -> Allowance | None:
        """None where there is no rate. A rate that has changed begins anew."""
        rate = principal.quota.tokens_per_minute
        if rate is None:
            return None
        allowance = self._of.get(principal.payer)
        if allowance is None or allowance.tokens_per_minute != rate:
            allowance = self._of[principal.payer] = Allowance(rate, self._longest_wait_s, self._clock)
        return allowance


@dataclass(slots=True)
class _Bill:
    paid: int
    used: int
    nodes: int | None  # that the server drafts for each verdict of a decode; None for a draft, whose rows are known


class Toll:
    """`submit` takes a job whose time has come. Without an allowance everything passes at once."""

    def __init__(self, allowance: Allowance | None, submit: Callable[[Job], None]) -> None:
        self._allowance = allowance
        self._submit = submit
        self._waiting: deque[tuple[float, int, Job]] = deque()  # due (loop time), seq
        self._bills: dict[int, _Bill] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def pass_through(self, job: Job, frame: Draft | Decode, room: int) -> None:
        """Now or later. `room`: tokens the context has left for an answer. Raises Refusal OVER_QUOTA."""
        if self._allowance is None:
            self._submit(job)
            return
        bill = _bill(frame, room)
        wait_s = self._allowance.pay(bill.paid)
        self._bills[frame.seq] = bill
        self._waiting.append((asyncio.get_running_loop().time() + wait_s, frame.seq, job))
        self._let_pass()

    def saw(self, seq: int, answer: Answer) -> None:
        """An answer on its way to the client; also one that came too late for it: it was computed."""
        bill = self._bills.get(seq)
        if bill is None or self._allowance is None:
            return
        match answer:
            case Verdict() if bill.nodes is not None and (answer.finish is not Finish.CANCELLED or answer.draft_us):
                bill.used += bill.nodes + len(answer.tokens) + (answer.bonus is not None)
                if self._closed:  # of a job that ends between passes nobody says that it is done
                    self._settle(bill)
            case Done() | Refusal():
                self._settle(bill)
                del self._bills[seq]
            case Verdict() | Features():
                pass

    def hurry(self) -> None:
        """Something was cancelled: it need not wait any longer."""
        self._let_pass()

    def close(self) -> None:
        """The stream is over: what never ran costs nothing. A pass under way is paid when it ends. Safe twice."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, seq, _ in self._waiting:
            self._bills[seq].used = 0
        self._waiting.clear()
        for bill in self._bills.values():
            self._settle(bill)

    def _settle(self, bill: _Bill) -> None:
        assert self._allowance is not None
        self._allowance.settle(bill.used - bill.paid)
        bill.paid = bill.used

    def _let_pass(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and (self._waiting[0][2].stopped or self._waiting[0][0] <= loop.time()):
            self._submit(self._waiting.popleft()[2])
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._waiting[0][0], self._let_pass) if self._waiting else None


def _bill(frame: Draft | Decode, room: int) -> _Bill:
    """A draft's rows are known; of a decode's, those that it may come to are paid, and settled at its end."""
    fixed = len(frame.context) + 1
    if isinstance(frame, Draft):
        rows = fixed + len(frame.tree)
        return _Bill(rows, rows, None)
    nodes = 0 if frame.tree is None else frame.tree.budget
    return _Bill(fixed + min(frame.max_tokens, max(room, 1)), fixed, nodes)
