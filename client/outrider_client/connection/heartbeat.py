"""When to ping while a reply is awaited, and when silence means that the link is lost. Pure: time is an argument.

A stalled TCP connection says nothing for minutes. So while a reply is awaited a Ping goes out after R/2 of silence, and
when neither its Pong nor any other frame has arrived for 1.5 R + 4 deviations, the link is lost: about 2 R after the
cut. While frames keep coming, some Pings measure R.

    cut       ping                                  lost
     |---------|-------------------------------------|
       <= R/2           1.5 R + 4 deviations

R is the smoothed round trip, or the newest one where that is longer: the path may have changed. What stretches the
deadline: a floor (schedulers stall), twice the time by which our own event loop runs late (a process that gets no
processor hears nothing, and a server beside it says nothing), the time a slow link needs for the bytes under way, a
factor that doubles whenever a link given up for lost turns out to be alive, and another one until a connection has
brought its first verdict (servers warm up), or its first one after a pause (what was known of the path is old).
"""

from __future__ import annotations

from outrider_client.connection.policy import Patience

_MEAN_WEIGHT = 1 / 8
_SPREAD_WEIGHT = 1 / 4
_UNKNOWN_RTT_S = 1.0  # as RFC 6298 starts
_MAX_FACTOR = 16.0
_UNPROVED_FACTOR = 2.0
_MOST_EXTRA_S = 3.0  # more than our own lateness: a link that fails on a busy machine is noticed, too
_SAMPLE_S = 0.25  # between Pings that only measure: each costs both sides as much as a token
_PAUSE_S = 1.5  # without a frame; longer than between the requests of one answer


class RttEstimator:
    """Smoothed round trip and mean deviation in seconds, estimated as TCP does (RFC 6298)."""

    def __init__(self) -> None:
        self.mean_s: float | None = None  # before anything is known
        self.spread_s = 0.0
        self.newest_s = 0.0  # the last sample
        self._measured = False

    def guess(self, seconds: float) -> None:
        """Start from an upper bound, such as the time to open a connection; the first sample replaces it."""
        if not self._measured:
            self.mean_s, self.spread_s = seconds, seconds / 2

    def add(self, sample_s: float) -> None:
        self.newest_s = sample_s = max(sample_s, 0.0)
        if self.mean_s is None or not self._measured:
            self.mean_s, self.spread_s, self._measured = sample_s, sample_s / 2, True
            return
        # RFC 6298: the spread is updated with the old mean, so it comes first.
        self.spread_s += _SPREAD_WEIGHT * (abs(sample_s - self.mean_s) - self.spread_s)
        self.mean_s += _MEAN_WEIGHT * (sample_s - self.mean_s)


class Heartbeat:
    """Pings and their answers on one connection."""

    def __init__(self, rtt: RttEstimator, patience: Patience, factor: float = 1.0) -> None:
        self._rtt = rtt
        self._patience = patience
        self._factor = min(factor, _MAX_FACTOR)
        self._unproved_factor = _UNPROVED_FACTOR
        self._request_bytes = 0
        self._row_bytes = 0
        self._unanswered: dict[int, float] = {}
        self._next_nonce = 1
        self._next_ping_at = self._pinged_at = 0.0
        self._heard_at = 0.0
        self._late_s = 0.0  # by which our event loop ran late since then

    def begin(self, now: float, request_bytes: int, row_bytes: int = 0) -> None:
        """Note that a reply is awaited from now on: to a request of `request_bytes`, with rows of about `row_bytes`."""
        if now - self._heard_at > _PAUSE_S:
            self._unproved_factor = _UNPROVED_FACTOR
        self.heard(now)
        self._request_bytes = request_bytes
        # Added: a small request (a Cancel, a draft) may follow while a prompt's rows are still on their way.
        self._row_bytes += row_bytes
        self._next_ping_at = now + self.interval_s

    def ping(self, now: float) -> int:
        """Return the nonce of a Ping that is sent now."""
        nonce, self._next_nonce = self._next_nonce, self._next_nonce + 1
        self._unanswered[nonce] = self._pinged_at = now
        self._next_ping_at = now + self.interval_s
        return nonce

    def pong(self, nonce: int, now: float) -> bool:
        """Take a Pong; return whether it answers a Ping."""
        sent_at = self._unanswered.pop(nonce, None)
        if sent_at is None:
            return False
        self._rtt.add(now - sent_at)
        # Frames keep their order, so this Pong answers older Pings, too.
        self._unanswered = {other: at for other, at in self._unanswered.items() if other > nonce}
        return True

    def verdict_arrived(self) -> None:
        self._unproved_factor = 1.0

    def heard(self, now: float) -> None:
        """Note that any frame arrived: the link is alive."""
        self._heard_at, self._late_s = now, 0.0
        sample_at = self._pinged_at + max(_SAMPLE_S, self.interval_s)
        self._next_ping_at = max(self._next_ping_at, min(now + self.interval_s, sample_at))

    def rows_arrived(self, num_bytes: int, *, last: bool) -> None:
        """Note that rows arrived, `num_bytes` as `begin` counts them; the `last` of a request end what was awaited."""
        self._row_bytes = 0 if last else max(self._row_bytes - num_bytes, 0)

    def ran_late(self, seconds: float) -> None:
        """Note that our own event loop woke so much later than it should: that is no silence of the link."""
        self._late_s += seconds

    def should_ping(self, now: float) -> bool:
        return now >= self._next_ping_at

    def is_lost(self, now: float) -> bool:
        return bool(self._unanswered) and now >= self._lost_at

    @property
    def due_at(self) -> float:
        """Time of the next check: the next ping, or the deadline of the oldest one."""
        return min(self._next_ping_at, self._lost_at) if self._unanswered else self._next_ping_at

    @property
    def interval_s(self) -> float:
        return max(self._mean_s / 2, self._patience.floor_s / 2)

    @property
    def deadline_s(self) -> float:
        """Longest time that a Pong may take, in seconds."""
        measured = 1.5 * max(self._mean_s, self._rtt.newest_s) + 4 * self._rtt.spread_s
        factor = self._factor * self._unproved_factor
        under_way_s = (self._request_bytes + self._row_bytes) * 8 / self._patience.assumed_rate_bps
        return max(measured, self._patience.floor_s) * factor + under_way_s

    @property
    def _mean_s(self) -> float:
        return _UNKNOWN_RTT_S if self._rtt.mean_s is None else self._rtt.mean_s

    @property
    def _lost_at(self) -> float:
        oldest = next(iter(self._unanswered.values()))
        # Any frame counts, not only the Pong: on a slow link it waits behind the features of a long prompt.
        forgiven_s = self._late_s + min(self._late_s, _MOST_EXTRA_S)
        return max(oldest, self._heard_at) + self.deadline_s + forgiven_s
