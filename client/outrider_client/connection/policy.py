"""How patiently a session treats its link: timeouts, silence, waits between attempts. Settings, and what follows from
them alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each remote wait may take, in seconds. Silence of the link is noticed far sooner (see heartbeat.py)."""

    connect_s: float = 5.0  # to reach the server for the first time
    reconnect_s: float = 0.5  # to reach it again, each attempt; six round trips where that is longer
    open_s: float = 30.0  # for the answer to Open; attempts to resume start with reconnect_s and double
    describe_s: float = 5.0
    verdict_s: float = 120.0  # while the link lives
    features_s: float = 10.0  # then the drafter goes on without them
    goodbye_s: float = 1.0  # for Close to reach the server


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


@dataclass(frozen=True, slots=True)
class Backoff:
    """The first attempt comes at once; the n-th waits a random time up to min(cap, first * factor ** (n - 1)).

    After silence a lower cap applies: such an attempt has taken its time already, no server asked for patience, and
    the link may return at any moment.
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
        # Half certain, half drawn: clients that lost one server do not all return at once, and none in a tight loop.
        return longest * (0.5 + 0.5 * generator.random())


@dataclass(frozen=True, slots=True)
class ConnectionPolicy:
    """Everything that a session allows its link."""

    timeouts: Timeouts
    patience: Patience
    backoff: Backoff
