"""When to ping while something is awaited, and when silence means that the link is lost. Pure: time is an argument.

A stalled TCP connection says nothing for minutes. So while an answer is awaited a Ping goes out every half round trip,
and when neither its Pong nor anything else has come for 1.5 R + 4 deviations, the link is lost: some 2 R after the cut.

    cut       ping                                  lost
     |---------|-------------------------------------|
       <= R/2           1.5 R + 4 deviations

What stretches the patience: a floor (schedulers stall), bytes under way that a slow link needs time for, a factor that
doubles whenever a link given up for lost turned out to be there, and another one until a connection has brought its
first verdict (servers warm up).
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_client.connection.rtt import RttEstimator
from outrider_proto.errors import UsageError

_UNKNOWN_RTT_S = 1.0  # as RFC 6298 starts
_MAX_FACTOR = 16.0
_UNPROVED_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How soon silence counts. `floor_s` is the least; `assumed_rate_bps` the rate that a link is trusted to have.

    Raises UsageError.
    """

    floor_s: float = 0.2
    assumed_rate_bps: float = 2e6

    def __post_init__(self) -> None:
        if not self.floor_s >= 0:
            raise UsageError(f"floor_s={self.floor_s}: need 0 or more")
        if not self.assumed_rate_bps > 0:
            raise UsageError(f"assumed_rate_bps={self.assumed_rate_bps}: need more than 0")


class Heartbeat:
    """Pings and their answers on one connection."""

    def __init__(self, rtt: RttEstimator, patience: Patience, factor: float = 1.0) -> None:
        self._rtt = rtt
        self._patience = patience
        self._factor = min(factor, _MAX_FACTOR)
        self._unproved_factor = _UNPROVED_FACTOR
        self._allowance_s = 0.0
        self._unanswered: dict[int, float] = {}
        self._next_nonce = 1
        self._next_ping_at = 0.0
        self._heard_at = 0.0

    def begin(self, now: float, num_bytes: int) -> None:
        """Something was sent and its answer is awaited from now on; both together are about `num_bytes` long."""
        self._heard_at = now
        self._allowance_s = num_bytes * 8 / self._patience.assumed_rate_bps
        self._next_ping_at = now + self.interval_s

    def ping(self, now: float) -> int:
        """The nonce of a Ping that goes out now."""
        nonce, self._next_nonce = self._next_nonce, self._next_nonce + 1
        self._unanswered[nonce] = now
        self._next_ping_at = now + self.interval_s
        return nonce

    def pong(self, nonce: int, now: float) -> None:
        sent_at = self._unanswered.pop(nonce, None)
        if sent_at is not None:
            self._rtt.add(now - sent_at)
            self._forget_before(nonce)

    def proved(self) -> None:
        """A verdict came."""
        self._unproved_factor = 1.0

    def heard(self, now: float) -> None:
        """Any frame came: the link lives."""
        self._heard_at = now

    def forgive(self, seconds: float) -> None:
        """Our own loop stood still for so long: that silence was not the link's."""
        self._heard_at += seconds

    def should_ping(self, now: float) -> bool:
        return now >= self._next_ping_at

    def is_lost(self, now: float) -> bool:
        return bool(self._unanswered) and now >= self._lost_at

    @property
    def due_at(self) -> float:
        """When to look again: the next ping, or the end of patience."""
        return min(self._next_ping_at, self._lost_at) if self._unanswered else self._next_ping_at

    @property
    def interval_s(self) -> float:
        return max(self._mean_s / 2, self._patience.floor_s / 4)

    @property
    def deadline_s(self) -> float:
        """How long a Pong may stay away."""
        measured = 1.5 * self._mean_s + 4 * self._rtt.spread_s
        factor = self._factor * self._unproved_factor
        return max(measured, self._patience.floor_s) * factor + self._allowance_s

    @property
    def _mean_s(self) -> float:
        return _UNKNOWN_RTT_S if self._rtt.mean_s is None else self._rtt.mean_s

    @property
    def _lost_at(self) -> float:
        oldest = next(iter(self._unanswered.values()))
        return max(oldest, self._heard_at) + self.deadline_s

    def _forget_before(self, nonce: int) -> None:
        """Frames keep their order, so what an older Ping asked is answered too."""
        for older in [n for n in self._unanswered if n < nonce]:
            del self._unanswered[older]
