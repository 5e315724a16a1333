"""What a link is like, as frozen data: each direction has its own delay, jitter and rate. Knows nothing of engines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Distribution = Literal["normal", "constant"]

MAX_MS = 60_000.0


class ProfileError(ValueError):
    """A profile, outage or other description of a link that cannot be; the message names value and remedy."""


@dataclass(frozen=True, slots=True)
class Direction:
    """One way through a link. A packet takes `base_ms` + `delay_ms` + its jitter, after waiting for the rate.

    `normal` draws max(0, N(delay_ms, jitter_ms)) for every packet, as netem does; `constant` needs jitter_ms=0.
    `rate_bps` 0 means unlimited. `loss` is a share of packets; a TCP relay cannot model it (see proxy.py).
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    distribution: Distribution = "constant"
    rate_bps: float = 0.0
    base_ms: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        for name in ("delay_ms", "jitter_ms", "base_ms"):
            _check(name, getattr(self, name), MAX_MS)
        _check("rate_bps", self.rate_bps, 1e12)
        _check("loss", self.loss, 1.0)
        if 0 < self.rate_bps < 1000:
            raise ProfileError(f"rate_bps={self.rate_bps:g}: need 0 (unlimited) or at least 1000 bit/s")
        if self.distribution not in ("normal", "constant"):
            raise ProfileError(f"distribution={self.distribution!r}: need 'normal' or 'constant'")
        if self.distribution == "constant" and self.jitter_ms:
            raise ProfileError(f"jitter_ms={self.jitter_ms:g} with distribution='constant': need 'normal' or no jitter")

    @property
    def mean_delay_ms(self) -> float:
        """Expected one-way delay of a lone small packet; the jitter's part is E[max(0, N(delay, jitter))]."""
        if not self.jitter_ms:
            return self.base_ms + self.delay_ms
        z = self.delay_ms / self.jitter_ms
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        below = (1 + math.erf(z / math.sqrt(2))) / 2
        return self.base_ms + self.delay_ms * below + self.jitter_ms * density


@dataclass(frozen=True, slots=True)
class Profile:
    """A named link, seen from the client: `up` leads to the server, `down` back."""

    name: str
    up: Direction
    down: Direction
    source: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ProfileError("name='': a profile needs a name")

    @classmethod
    def symmetric(cls, name: str, direction: Direction, source: str = "") -> Profile:
        return cls(name, direction, direction, source)

    @property
    def round_trip_ms(self) -> float:
        """Expected round trip of small packets, jitter included."""
        return self.up.mean_delay_ms + self.down.mean_delay_ms


def _check(name: str, value: float, most: float) -> None:
    if not 0 <= value <= most:  # also refuses NaN
        raise ProfileError(f"{name}={value:g}: need 0 to {most:g}")


def _paper(delay_ms: float, jitter_ms: float, rate_bps: float) -> Direction:
    """The base ping of 9 ms is a round trip, so each way has half of it; delay and jitter are shaped both ways."""
    return Direction(delay_ms, jitter_ms, "normal", rate_bps, base_ms=4.5, loss=0.001)


_PAPER = "Mixture of Attentions (arXiv 2410.03804), section 4.2"

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile.symmetric("paper-5g", _paper(10, 10, 50e6), _PAPER),
        Profile.symmetric("paper-4g", _paper(21, 19, 20e6), _PAPER),
        Profile.symmetric("lan", Direction(delay_ms=0.1, rate_bps=1e9), "a switched gigabit network"),
    )
}


def profile_named(name: str) -> Profile:
    """A built-in profile. Raises ProfileError that lists the names there are."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ProfileError(f"profile {name!r} is unknown: choose one of {', '.join(PROFILES)}") from None
