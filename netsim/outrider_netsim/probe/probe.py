"""Measure a link through a real engine: what to send, how fast, and in which order. Asks no target what engine it is.

    control     a short volley over bare sockets: what measuring costs here; reported, never subtracted
    delay       lone packets, so far apart that none waits for another: SPACING_S, and where they stay in order, so that
                a late one holds up the next, what lies between a late delay (quantile LATE) and a quick one (QUICK)
    loss        many packets, as fast as the rate (QUIET_SHARE of it) and half the queue allow; also their order
    throughput  OVERLOAD x the rate, one way after the other; last, since it leaves the link's queue full

Both ways are probed at once but for throughput. Standard library only, for guests that have no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.probe.crossings import WAYS, Crossing, Flood, Load, Samples, Transport, Volley, Way
from outrider_netsim.probe.expectations import serialisation_ms
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.traces import Conditions, Deliveries

SPACING_S = 0.005
LATE, QUICK = 0.998, 0.25
LOSS_SPACING_S = 0.0005
QUIET_SHARE = 0.4
OVERLOAD = 1.25
LOAD_S = 5.0
CONTROL = Volley(200, SPACING_S, 0.5)
MOST_PACKETS = 10_000_000


class ProbeTarget(Protocol):
    """A link between two ends that packets can be sent through: sockets of an engine, or virtual time."""

    @property
    def transport(self) -> Transport: ...
    @property
    def link_bytes(self) -> int:
        """A packet of a volley, as the link's rate counts it."""

    @property
    def least_spacing_s(self) -> float:
        """Packets of a volley cannot be closer."""

    async def volley(self, volley: Volley) -> dict[Way, Crossing]: ...
    async def load(self, load: Load) -> Flood: ...
    async def control(self, volley: Volley) -> dict[Way, Crossing]:
        """The same volley without a link between the ends."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a probe of one profile sends."""

    delay: Volley
    loss: Volley
    loads: tuple[Load, ...]


@dataclass(frozen=True, slots=True)
class Probed:
    """What was sent and what was seen; `control` is the delay volley's like over bare sockets."""

    plan: Plan
    samples: Samples
    control: dict[Way, Crossing]


def plan(target: ProbeTarget, profile: Profile, packets: int, loss_packets: int) -> Plan:
    """How `profile` has to be probed."""
    directions, link_bytes, least_s = (profile.up, profile.down), target.link_bytes, target.least_spacing_s
    settle_s = max(map(_settle_s, directions))
    delay_spacing_s = max(least_s, *(_lone_spacing_s(direction, link_bytes) for direction in directions))
    loss_spacing_s = max(least_s, *(_quiet_spacing_s(direction, link_bytes) for direction in directions))
    return Plan(
        Volley(packets, delay_spacing_s, settle_s),
        Volley(loss_packets, loss_spacing_s, settle_s),
        tuple(_load(way, direction) for way, direction in zip(WAYS, directions, strict=True) if _full_rate(direction)),
    )


def check_counts(packets: int, loss_packets: int) -> None:
    """Raises ProfileError for absurd ones."""
    for name, count in (("packets", packets), ("loss packets", loss_packets)):
        if not 1 <= count <= MOST_PACKETS:
            raise ProfileError(f"{name}={count}: need 1 to {MOST_PACKETS}")


async def measure(target: ProbeTarget, planned: Plan, say: Callable[[str], None] = lambda _: None) -> Probed:
    """Carry out the plan; `say` is told what is under way. Raises EngineError when measuring failed."""
    say(f"control: {CONTROL.packets} packets each way over bare sockets")
    control = await target.control(CONTROL)
    say(_told("delay", planned.delay))
    delay = await target.volley(planned.delay)
    say(_told("loss", planned.loss))
    loss = await target.volley(planned.loss)
    flood = {}
    for load in planned.loads:
        say(f"throughput {load.way}: {load.offered_bps / 1e6:.1f} Mbit/s for {load.duration_s:.1f} s")
        flood[load.way] = await target.load(load)
    return Probed(planned, Samples(target.transport, target.link_bytes, delay, loss, flood), control)


def _lone_spacing_s(direction: Direction, link_bytes: int) -> float:
    in_order_s = direction.quantile_s(LATE) - direction.quantile_s(QUICK) if direction.in_order else 0.0
    return max(SPACING_S, in_order_s, serialisation_ms(direction, link_bytes) / 1000 / QUIET_SHARE)


def _quiet_spacing_s(direction: Direction, link_bytes: int) -> float:
    serialisation_s = serialisation_ms(direction, link_bytes) / 1000
    longest_s = (direction.mean_delay_ms + 6 * direction.delay_deviation_ms) / 1000
    return max(LOSS_SPACING_S, serialisation_s / QUIET_SHARE, 2 * longest_s / direction.queue_packets)


def _settle_s(direction: Direction) -> float:
    return 0.5 + (direction.mean_delay_ms + 10 * direction.delay_deviation_ms) / 1000


def _full_rate(direction: Direction) -> float:
    """The rate to exceed; 0 where there is none."""
    trace = direction.trace
    if isinstance(trace, Deliveries):
        return trace.mean_rate_bps
    if isinstance(trace, Conditions) and trace.rate_bps:
        return max(trace.rate_bps)
    return direction.rate_bps


def _load(way: Way, direction: Direction) -> Load:
    offered_bps = OVERLOAD * _full_rate(direction) / max(0.01, 1 - direction.mean_loss)
    return Load(way, offered_bps, LOAD_S + 2 * direction.mean_delay_ms / 1000, _settle_s(direction))


def _told(what: str, volley: Volley) -> str:
    seconds = volley.packets * volley.spacing_s
    return f"{what}: {volley.packets:,} packets each way, one every {volley.spacing_s * 1000:g} ms, {seconds:.0f} s"
