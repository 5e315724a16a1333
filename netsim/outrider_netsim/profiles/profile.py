"""The description of a link as frozen data: delay, jitter, loss and rate per direction. Knows no engine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

from outrider_netsim.core.engine_names import Way
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles import delays
from outrider_netsim.profiles.delays import DISTRIBUTIONS, Distribution
from outrider_netsim.profiles.distribution_table import DistributionTable
from outrider_netsim.profiles.outages import Outage, in_order
from outrider_netsim.profiles.traces import DeliveryTrace, Trace

__all__ = ["Bursts", "Direction", "Distribution", "Outage", "Profile", "ProfileError"]

Aqm = Literal["none", "codel", "fq_codel"]  # active queue management
AQMS: tuple[Aqm, ...] = get_args(Aqm)

MAX_MS = 60_000.0
MAX_QUEUE_PACKETS = 10_000_000
MAX_QUEUE_BYTES = 2**32 - 1
USUAL_QUEUE_BYTES = 1000 * 1514  # of full packets, or what the delay holds of the rate, if that is more
LEAST_BUFFER_BYTES = 2 * 1514  # two full packets: with less a lone burst of two would lose one


@dataclass(frozen=True, slots=True)
class Bursts:
    """Bursty loss (Gilbert-Elliott): a packet finds the link good or bad and is lost with that state's probability.

    Before each packet the state changes, from good to bad with probability `p`, from bad to good with `r`. A burst of
    bad packets is 1/r long on average and comes once in 1/p good ones.
    """

    p: float
    r: float
    bad: float = 1.0
    good: float = 0.0

    def __post_init__(self) -> None:
        for name in ("p", "r", "bad", "good"):
            check_range(f"bursts.{name}", getattr(self, name), 0, 1.0)
        if not self.r:
            raise ProfileError("bursts.r=0: the link would stay bad forever; need more than 0")

    @property
    def mean_loss(self) -> float:
        """Return the long-run share of lost packets."""
        return (self.p * self.bad + self.r * self.good) / (self.p + self.r)


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a link. A packet takes base_ms + max(0, X), then waits for the rate.

    X has mean `delay_ms`, standard deviation `jitter_ms` and the shape of `distribution` (delays.py), drawn for every
    packet; `constant` needs jitter_ms=0. Draws are independent, or correlated from one packet to the next: by
    `correlation`, or by exp(-t / coherence_ms) for packets t apart. Neither changes how a single delay is distributed.
    A trace replaces what it has columns for: its delay `delay_ms`, its rate or deliveries `rate_bps`, its loss `loss`
    and `bursts`.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    distribution: Distribution = "constant"
    rate_bps: float = 0.0  # 0: unlimited; counts whole IP packets and 14 bytes of Ethernet header each, as netem does
    base_ms: float = 0.0
    correlation: float = 0.0  # of the normal variables behind one packet's delay and the next one's
    coherence_ms: float = 0.0  # in its place: the time after which that correlation has fallen to 1/e
    loss: float = 0.0  # share of packets, independent of each other
    bursts: Bursts | None = None  # in place of `loss`
    duplicate: float = 0.0  # share of packets that arrive twice
    corrupt: float = 0.0  # share of packets of which one bit is flipped
    queue_packets: int | None = None  # waiting for rate and delay together (netem's limit); more is dropped
    queue_bytes: int = 0  # in its place: limits what waits for the rate, and not what is under way in the delay
    queue_ms: float = 0.0  # the same, as the time that the current rate takes for it
    aqm: Aqm = "none"  # what else is dropped from the buffer before the rate, before it is full
    in_order: bool = False  # packets never overtake each other, as on a radio bearer; else jitter reorders (netem)
    slot_ms: float = 0.0  # packets leave only at multiples of it, all that are ready together
    trace: Trace | None = None

    def __post_init__(self) -> None:
        for name in ("delay_ms", "jitter_ms", "base_ms", "slot_ms", "coherence_ms", "queue_ms"):
            check_range(name, getattr(self, name), 0, MAX_MS)
        check_range("rate_bps", self.rate_bps, 0, 1e12)
        for name in ("loss", "duplicate", "corrupt", "correlation"):
            check_range(name, getattr(self, name), 0, 1.0)
        if 0 < self.rate_bps < 1000:
            raise ProfileError(f"rate_bps={self.rate_bps:g}: need 0 (unlimited) or at least 1000 bit/s")
        if not isinstance(self.distribution, DistributionTable) and self.distribution not in DISTRIBUTIONS:
            raise ProfileError(
                f"distribution={self.distribution!r}: need one of {', '.join(DISTRIBUTIONS)}, or FILE.dist"
            )
        if self.distribution == "constant" and self.jitter_ms:
            raise ProfileError(
                f"jitter_ms={self.jitter_ms:g} with distribution='constant': need another distribution or no jitter"
            )
        if self.correlation == 1:
            raise ProfileError("correlation=1: the delay would never change; need less than 1")
        if self.correlation and self.coherence_ms:
            raise ProfileError(
                f"correlation={self.correlation:g} beside coherence_ms={self.coherence_ms:g}: "
                "the one is by packet, the other by time, so give one of them"
            )
        if self.loss and self.bursts:
            raise ProfileError(f"loss={self.loss:g} beside bursts: bursts replace it, so give one of them")
        self._check_queue()

    def _check_queue(self) -> None:
        if self.queue_packets is not None and not 1 <= self.queue_packets <= MAX_QUEUE_PACKETS:
            raise ProfileError(f"queue_packets={self.queue_packets}: need 1 to {MAX_QUEUE_PACKETS}")
        check_range("queue_bytes", self.queue_bytes, 0, MAX_QUEUE_BYTES)
        if self.aqm not in AQMS:
            raise ProfileError(f"aqm={self.aqm!r}: need one of {', '.join(AQMS)}")
        names = "queue_packets", "queue_bytes", "queue_ms"
        given = [f"{name}={limit:g}" for name in names if (limit := getattr(self, name))]
        if len(given) > 1:
            raise ProfileError(f"{' beside '.join(given)}: each limits the queue, so give one of them")

    @property
    def buffer_bytes(self) -> int | None:
        """Return how many bytes may wait for the rate, or None where `queue_packets` is the limit instead.

        At least two full packets. Without a rate there is no such limit, as nothing waits.
        """
        if self.queue_bytes:
            return max(LEAST_BUFFER_BYTES, self.queue_bytes)
        if self.queue_packets is not None:
            return None
        rate_bps = self.trace.mean_rate_bps if isinstance(self.trace, DeliveryTrace) else self.rate_bps
        if not rate_bps:
            return MAX_QUEUE_BYTES
        least = LEAST_BUFFER_BYTES if self.queue_ms else USUAL_QUEUE_BYTES
        milliseconds = self.queue_ms or self.mean_delay_ms
        return min(MAX_QUEUE_BYTES, max(least, round(rate_bps * milliseconds / 8000)))

    @property
    def has_usual_queue(self) -> bool:
        """True where nobody asked for what a full queue drops."""
        return self.aqm == "none" and not (self.queue_bytes or self.queue_ms or self.queue_packets)

    @property
    def mean_delay_ms(self) -> float:
        """Return the exact mean one-way delay of a lone small packet, without a trace."""
        return self.base_ms + delays.moments(self.distribution, self.delay_ms, self.jitter_ms)[0]

    @property
    def delay_deviation_ms(self) -> float:
        """Return the exact standard deviation of that delay: below `jitter_ms` where the cut at 0 matters."""
        return delays.moments(self.distribution, self.delay_ms, self.jitter_ms)[1]

    @property
    def mean_loss(self) -> float:
        """Return the long-run share of lost packets, without a trace."""
        return self.bursts.mean_loss if self.bursts else self.loss

    def delay_s(self, rng: random.Random) -> float:
        """Draw an independent delay in seconds. Takes one number from `rng`, or none without jitter."""
        # Exactly one draw, used as it is: anything else would change every seeded run.
        return self.quantile_s(1 - rng.random()) if self.jitter_ms else (self.base_ms + self.delay_ms) / 1000

    def quantile_s(self, u: float) -> float:
        """Return the delay in seconds that a share `u` (0 to 1) of packets does not exceed."""
        # A normal variable has no smallest and no largest value: keep `u` off both ends.
        u = min(max(u, 2**-53), 1 - 2**-53)
        return (self.base_ms + delays.quantile(self.distribution, self.delay_ms, self.jitter_ms, u)) / 1000


@dataclass(frozen=True, slots=True)
class Profile:
    """A named link: `up` leads from the client to the server, `down` back."""

    name: str
    up: Direction
    down: Direction
    source: str = ""
    outages: tuple[Outage, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ProfileError("name='': a profile needs a name")
        if any(outage.after_answer for outage in self.outages):
            raise ProfileError("an outage @first: only --outage of run and proxy counts from an answer")
        in_order(self.outages)

    @classmethod
    def symmetric(cls, name: str, direction: Direction, source: str = "", outages: tuple[Outage, ...] = ()) -> Profile:
        return cls(name, direction, direction, source, outages)

    @property
    def directions(self) -> dict[Way, Direction]:
        return {"up": self.up, "down": self.down}

    def outages_of(self, way: Way) -> list[Outage]:
        """Return the planned outages of one direction."""
        return [outage for outage in self.outages if outage.concerns(way)]

    @property
    def round_trip_ms(self) -> float:
        """Return the mean round trip of small packets, jitter included."""
        return self.up.mean_delay_ms + self.down.mean_delay_ms


def check_range(name: str, value: float, least: float, most: float) -> None:
    """Raise ProfileError for a value that is not between the two."""
    if not least <= value <= most:  # also refuses NaN
        raise ProfileError(f"{name}={value:g}: need {least:g} to {most:g}")
