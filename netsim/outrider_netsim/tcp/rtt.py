"""The round trip as a sender knows it, and the retransmission timeout (RFC 6298 as net/ipv4/tcp_input.c has it)."""

from __future__ import annotations

import math

FIRST_RTO_S = 1.0  # before a round trip was measured
MIN_RTO_S = 0.2  # Linux's least deviation: RTO = SRTT + max(200 ms, 4 RTTVAR)
MAX_RTO_S = 120.0


class TcpRttEstimator:
    """SRTT, RTO and the least round trip, in seconds.

    RFC 6298's RTTVAR becomes the largest deviation within a round trip here: it rises at once and falls by a quarter a
    round trip (tcp_rtt_estimator).
    """

    def __init__(self) -> None:
        self.srtt_s = 0.0
        self.min_s = math.inf
        self.rto_s = FIRST_RTO_S
        self._deviation_s = 0.0  # four mean deviations, as the following two
        self._worst_s = MIN_RTO_S  # in this round trip
        self._variation_s = MIN_RTO_S
        self._round_ends = 0  # the sequence number that ends it

    def sample(self, rtt_s: float, acked: int, sent: int) -> None:
        """Take the round trip of what was just acknowledged; all before `acked` is, all before `sent` is under way."""
        if self.srtt_s:
            error_s = rtt_s - self.srtt_s
            self.srtt_s += error_s / 8
            excess_s = abs(error_s) - self._deviation_s / 4
            # A round trip that gets shorter is no reason to wait longer.
            self._deviation_s += excess_s / 8 if error_s < 0 < excess_s else excess_s
            self._worst_s = max(self._worst_s, self._deviation_s)
            self._variation_s = max(self._variation_s, self._worst_s)
            if acked > self._round_ends:
                self._variation_s -= max(0.0, self._variation_s - self._worst_s) / 4
                self._round_ends = sent
                self._worst_s = MIN_RTO_S
        else:
            self.srtt_s = rtt_s
            self._deviation_s = 2 * rtt_s
            self._worst_s = self._variation_s = max(self._deviation_s, MIN_RTO_S)
            self._round_ends = sent
        self.rto_s = min(MAX_RTO_S, self.srtt_s + self._variation_s)

    def back_off(self) -> None:
        """Double the timeout until the next sample."""
        self.rto_s = min(MAX_RTO_S, 2 * self.rto_s)
