"""Congestion control: how the window grows, and what it shrinks to after a loss. CUBIC and Reno, as Linux has them."""

from __future__ import annotations

import math
from typing import Protocol

from outrider_netsim.core.engine_names import MODELED_CONGESTION
from outrider_netsim.core.errors import EngineError


class CongestionWindow(Protocol):
    """The sender's variables that congestion control reads and sets, in packets; `una` and `nxt` in bytes."""

    cwnd: int
    cwnd_count: int
    ssthresh: float
    una: int
    nxt: int


class Reno:
    """RFC 5681: one packet more a round trip, half after a loss (net/ipv4/tcp_cong.c)."""

    def ssthresh(self, window: CongestionWindow) -> int:
        """Return the window to go down to after a loss."""
        return max(window.cwnd // 2, 2)

    def grow(self, window: CongestionWindow, acked: int, now: float) -> None:
        """Take that `acked` packets were delivered while the window was full."""
        if left := slow_start(window, acked):
            additive_increase(window, window.cwnd, left)

    def measured(self, window: CongestionWindow, rtt_s: float, now: float) -> None:
        """Take the round trip of a packet."""

    def timed_out(self) -> None:
        """Forget what was learned: everything under way was lost."""

    def resumed(self, idle_s: float, now: float) -> None:
        """Take that the sender was idle."""


class Cubic(Reno):
    """RFC 9438 with HyStart (net/ipv4/tcp_cubic.c)."""

    BETA = 717 / 1024
    C = 410 / 1024
    ALPHA = 8 / 15  # of Reno, to be fair to it: 3 (1 - beta) / (1 + beta), in the kernel's integers
    TRAIN_GAP_S = 0.002
    HYSTART_PACKETS = 16
    HYSTART_SAMPLES = 8

    def __init__(self) -> None:
        self._min_rtt_s = 0.0
        self.timed_out()

    def timed_out(self) -> None:
        self._min_rtt_s = 0.0
        self._last_max = 0.0
        self._epoch: float | None = None
        self._origin = self._k_s = 0.0
        self._acked = 0.0  # since the epoch began, less what `_reno` has taken
        self._reno = 0
        self._count = 1
        self._updated_at, self._updated_for = -math.inf, 0
        self._train_over = False
        self._round_ends = -1
        self._round_from = self._last_ack = 0.0
        self._round_rtt_s, self._samples = math.inf, 0

    def ssthresh(self, window: CongestionWindow) -> int:
        cwnd = window.cwnd
        self._epoch = None
        # Fast convergence: a window that no longer reaches its last maximum makes room for others.
        self._last_max = cwnd * (1 + self.BETA) / 2 if cwnd < self._last_max else cwnd
        return max(int(cwnd * self.BETA), 2)

    def grow(self, window: CongestionWindow, acked: int, now: float) -> None:
        if left := slow_start(window, acked):
            self._update(window.cwnd, left, now)
            additive_increase(window, self._count, left)

    def resumed(self, idle_s: float, now: float) -> None:
        if self._epoch is not None:
            self._epoch = min(now, self._epoch + idle_s)

    def _update(self, cwnd: int, acked: int, now: float) -> None:
        self._acked += acked
        if self._updated_for == cwnd and now - self._updated_at <= 1 / 32:
            return
        self._updated_for, self._updated_at = cwnd, now
        if self._epoch is None:
            self._epoch, self._acked, self._reno = now, acked, cwnd
            self._origin = max(self._last_max, cwnd)
            self._k_s = ((self._origin - cwnd) / self.C) ** (1 / 3)
        target = self._origin + self.C * (now + self._min_rtt_s - self._epoch - self._k_s) ** 3
        count = cwnd / (target - cwnd) if target > cwnd else 100 * cwnd
        if not self._last_max:
            count = min(count, 20)
        grown = int(self._acked * self.ALPHA / cwnd)
        self._acked -= grown * cwnd / self.ALPHA
        self._reno += grown
        if self._reno > cwnd:
            count = min(count, cwnd / (self._reno - cwnd))
        self._count = max(2, int(count))

    def measured(self, window: CongestionWindow, rtt_s: float, now: float) -> None:
        # Right after a recovery a round trip says little.
        if self._epoch is not None and now - self._epoch < 1:
            return
        if not self._min_rtt_s or rtt_s < self._min_rtt_s:
            self._min_rtt_s = rtt_s
        if not self._train_over and window.cwnd < window.ssthresh:
            self._hystart(window, rtt_s, now)

    def _hystart(self, window: CongestionWindow, rtt_s: float, now: float) -> None:
        """End slow start before the queue overflows (Ha and Rhee, Computer Networks 55, 2011)."""
        if window.una > self._round_ends:
            self._round_ends = window.nxt
            self._round_from = self._last_ack = now
            self._round_rtt_s, self._samples = math.inf, 0
        if window.cwnd < self.HYSTART_PACKETS:
            return
        if now - self._last_ack <= self.TRAIN_GAP_S:
            self._last_ack = now
            # Acks that follow each other for half a round trip: the path is full of packets.
            self._train_over = now - self._round_from > self._min_rtt_s / 2
        self._round_rtt_s = min(self._round_rtt_s, rtt_s)
        if self._samples < self.HYSTART_SAMPLES:
            self._samples += 1
        elif self._round_rtt_s > self._min_rtt_s + min(0.016, max(0.004, self._min_rtt_s / 8)):
            self._train_over = True
        if self._train_over:
            window.ssthresh = window.cwnd


def slow_start(window: CongestionWindow, acked: int) -> int:
    """Grow by every acknowledged packet up to the threshold and return how many are left."""
    if window.cwnd >= window.ssthresh:
        return acked
    grown = int(min(window.cwnd + acked, window.ssthresh))
    left = acked - (grown - window.cwnd)
    window.cwnd = grown
    return left


def additive_increase(window: CongestionWindow, every: int, acked: int) -> None:
    """Grow by one for `every` acknowledged packets."""
    if window.cwnd_count >= every:
        window.cwnd_count = 0
        window.cwnd += 1
    window.cwnd_count += acked
    grown, window.cwnd_count = divmod(window.cwnd_count, every)
    window.cwnd += grown


def congestion_control(name: str) -> Reno:
    """Create a congestion control by name. Raises EngineError for one that is not modeled."""
    if name not in MODELED_CONGESTION:
        raise EngineError(f"congestion {name!r}: only {' and '.join(MODELED_CONGESTION)} are modeled")
    return Reno() if name == "reno" else Cubic()
