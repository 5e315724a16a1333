"""Plan and run a probe: what to send, how fast, and in which order. Knows no engine.

    control     a short train over bare sockets: what measuring costs here; reported, never subtracted
    delay       lone packets, so far apart that none waits for another: SPACING_S, and for in-order links, where a late
                packet holds up the next, the time between a late delay (quantile LATE) and a quick one (QUICK);
                half of the coherence where delays are correlated, so that few count as one
    loss        many packets, as fast as QUIET_SHARE of the rate and half the queue allow; also measures reordering
    throughput  OVERLOAD x the rate, one way after the other; last, because it fills the link's queue

Both ways are probed at once, except for throughput. Standard library only, for bare guests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.probe.expectations import serialisation_ms
from outrider_netsim.probe.samples import (
    WAYS,
    LoadTimes,
    PacketTimes,
    PacketTrain,
    Samples,
    SaturatingLoad,
    Transport,
    Way,
)
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace

SPACING_S = 0.005
LATE, QUICK = 0.998, 0.25
LOSS_SPACING_S = 0.0005
QUIET_SHARE = 0.4
OVERLOAD = 1.25
LOAD_S = 5.0
CONTROL = PacketTrain(200, SPACING_S, 0.5)
MOST_PACKETS = 10_000_000


class ProbeTarget(Protocol):
    """A link with two ends to send packets between: an engine's sockets, or a virtual link."""

    @property
    def transport(self) -> Transport: ...
    @property
    def link_bytes(self) -> int:
        """Size of a packet of a train, as the link's rate counts it."""

    @property
    def least_spacing_s(self) -> float:
        """Least possible time between packets of a train."""

    async def send_train(self, train: PacketTrain) -> dict[Way, PacketTimes]: ...
    async def send_load(self, load: SaturatingLoad) -> LoadTimes: ...
    async def control(self, train: PacketTrain) -> dict[Way, PacketTimes]:
        """Send the same train without a link between the ends."""


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """The trains and loads that a probe of one profile sends."""

    delay: PacketTrain
    loss: PacketTrain
    loads: tuple[SaturatingLoad, ...]


@dataclass(frozen=True, slots=True)
class ProbeMeasurements:
    """The plan and its samples; `control` is a train over bare sockets."""

    plan: ProbePlan
    samples: Samples
    control: dict[Way, PacketTimes]


def plan_probe(target: ProbeTarget, profile: Profile, packets: int, loss_packets: int) -> ProbePlan:
    """Plan the trains and loads for `profile`."""
    directions, link_bytes, least_s = (profile.up, profile.down), target.link_bytes, target.least_spacing_s
    settle_s = max(map(_settle_s, directions))
    delay_spacing_s = max(least_s, *(_lone_spacing_s(direction, link_bytes) for direction in directions))
    loss_spacing_s = max(least_s, *(_quiet_spacing_s(direction, link_bytes) for direction in directions))
    return ProbePlan(
        PacketTrain(packets, delay_spacing_s, settle_s),
        PacketTrain(loss_packets, loss_spacing_s, settle_s),
        tuple(_load(way, direction) for way, direction in zip(WAYS, directions, strict=True) if _full_rate(direction)),
    )


def check_counts(packets: int, loss_packets: int) -> None:
    """Raise ProfileError for packet counts out of range."""
    for name, count in (("packets", packets), ("loss packets", loss_packets)):
        if not 1 <= count <= MOST_PACKETS:
            raise ProfileError(f"{name}={count}: need 1 to {MOST_PACKETS}")


async def measure(
    target: ProbeTarget, planned: ProbePlan, say: Callable[[str], None] = lambda _: None
) -> ProbeMeasurements:
    """Run the plan; `say` gets a line per step. Raises EngineError when measuring fails."""
    say(f"control: {CONTROL.packets} packets each way over bare sockets")
    control = await target.control(CONTROL)
    say(_announcement("delay", planned.delay))
    delay = await target.send_train(planned.delay)
    say(_announcement("loss", planned.loss))
    loss = await target.send_train(planned.loss)
    load_times = {}
    for load in planned.loads:
        say(f"throughput {load.way}: {load.offered_bps / 1e6:.1f} Mbit/s for {load.duration_s:.1f} s")
        load_times[load.way] = await target.send_load(load)
    return ProbeMeasurements(planned, Samples(target.transport, target.link_bytes, delay, loss, load_times), control)


def _lone_spacing_s(direction: Direction, link_bytes: int) -> float:
    in_order_s = direction.quantile_s(LATE) - direction.quantile_s(QUICK) if direction.in_order else 0.0
    apart_s = direction.coherence_ms / 2000 if direction.jitter_ms else 0.0
    return max(SPACING_S, in_order_s, apart_s, serialisation_ms(direction, link_bytes) / 1000 / QUIET_SHARE)


def _quiet_spacing_s(direction: Direction, link_bytes: int) -> float:
    serialisation_s = serialisation_ms(direction, link_bytes) / 1000
    longest_s = (direction.mean_delay_ms + 6 * direction.delay_deviation_ms) / 1000
    # As packets of a train; a buffer before the rate gets them in bunches where they are kept in order.
    buffer_bytes = direction.buffer_bytes
    room = direction.queue_packets if buffer_bytes is None else buffer_bytes / link_bytes
    return max(LOSS_SPACING_S, serialisation_s / QUIET_SHARE, 2 * longest_s / room)


def _settle_s(direction: Direction) -> float:
    return 0.5 + (direction.mean_delay_ms + 10 * direction.delay_deviation_ms) / 1000


def _full_rate(direction: Direction) -> float:
    """Return the rate to exceed; 0 if there is none."""
    trace = direction.trace
    if isinstance(trace, DeliveryTrace):
        return trace.mean_rate_bps
    if isinstance(trace, ConditionTrace) and trace.rate_bps:
        return max(trace.rate_bps)
    return direction.rate_bps


def _load(way: Way, direction: Direction) -> SaturatingLoad:
    offered_bps = OVERLOAD * _full_rate(direction) / max(0.01, 1 - direction.mean_loss)
    return SaturatingLoad(way, offered_bps, LOAD_S + 2 * direction.mean_delay_ms / 1000, _settle_s(direction))


def _announcement(what: str, train: PacketTrain) -> str:
    seconds = train.packets * train.spacing_s
    return f"{what}: {train.packets:,} packets each way, one every {train.spacing_s * 1000:g} ms, {seconds:.0f} s"
