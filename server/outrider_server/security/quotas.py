"""What each payer has used of its quota. Lives on the event loop; the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable

from outrider_proto.errors import Reason, Refusal
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
