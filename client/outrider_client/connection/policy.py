"""Settings of a link: timeouts, how long silence is tolerated, waits between attempts to reconnect."""

from __future__ import annotations

import random
from dataclasses import dataclass

from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits on remote waits, in seconds. A silent link is noticed far sooner (see heartbeat.py)."""

    connect_s: float = 5.0  # first connection to the server
    reconnect_s: float = 0.5  # each attempt to reconnect; six round trips if that is longer
    open_s: float = 30.0  # answer to Open; attempts to resume start with reconnect_s and double
    describe_s: float = 5.0
    verdict_s: float = 120.0  # while the link is alive
    features_s: float = 10.0  # then the drafter continues without them
    goodbye_s: float = 1.0  # time for Close to reach the server


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits on the silence of a link. Raises UsageError."""

    floor_s: float = 0.2  # lower bound of the deadline for a Pong
    assumed_rate_bps: float = 2e6  # lowest rate of a link: bytes under way extend the deadline accordingly

    def __post_init__(self) -> None:
        if not self.floor_s >= 0:
            raise UsageError(f"floor_s={self.floor_s}: need 0 or more")
        if not self.assumed_rate_bps > 0:
            raise UsageError(f"assumed_rate_bps={self.assumed_rate_bps}: need more than 0")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts to reconnect: exponential, capped, jittered.

    The first attempt is immediate; the n-th waits up to min(cap, first * factor ** (n - 1)) seconds. After silence a
    lower cap applies: the attempt itself took time, no server asked to wait, and the link may return at any moment.
    """

    first_s: float = 0.1
    factor: float = 2.0
    cap_s: float = 2.0
    silence_cap_s: float = 0.5

    def delay_s(self, attempt: int, generator: random.Random, *, after_silence: bool = False) -> float:
        """Seconds to wait before `attempt`, which counts from 0."""
        if attempt == 0:
            return 0.0
        cap_s = min(self.cap_s, self.silence_cap_s) if after_silence else self.cap_s
        longest = min(cap_s, self.first_s * self.factor ** min(attempt - 1, 32))
        # Half fixed, half random: clients that lost the same server do not return all at once, and none in a tight
        # loop.
        return longest * (0.5 + 0.5 * generator.random())


@dataclass(frozen=True, slots=True)
class ConnectionPolicy:
    """All settings of a session's link."""

    timeouts: Timeouts
    patience: Patience
    backoff: Backoff
