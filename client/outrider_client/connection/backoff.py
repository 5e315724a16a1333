"""How long to wait before the next attempt to reconnect: exponential, capped, jittered."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The first attempt comes at once; the n-th waits a random time up to min(cap, first * factor ** (n - 1)).

    Half of that is certain and half is drawn, so that clients that lost one server do not come back as one, and none
    comes back in a tight loop. After silence the cap is a lower one: such an attempt took its time already, nobody
    asked for patience, and the link may be there again at any moment.
    """

    first_s: float = 0.1
    factor: float = 2.0
    cap_s: float = 2.0
    silence_cap_s: float = 0.5

    def delay_s(self, attempt: int, generator: random.Random, *, after_silence: bool = False) -> float:
        """`attempt` counts from 0."""
        if attempt == 0:
            return 0.0
        cap_s = min(self.cap_s, self.silence_cap_s) if after_silence else self.cap_s
        longest = min(cap_s, self.first_s * self.factor ** min(attempt - 1, 32))
        return longest * (0.5 + 0.5 * generator.random())
