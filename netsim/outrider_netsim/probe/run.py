"""One probe, from profile to figures: open the link, send three kinds of trains, compare with the profile.

    delay       lone packets, so far apart that none waits for another: SPACING_S, and for in-order links, where a late
                packet holds up the next, the time between a late delay (quantile LATE) and a quick one (QUICK)
    loss        many packets, as fast as QUIET_SHARE of the rate and half the queue allow; also measures reordering
    throughput  OVERLOAD x the rate, one way after the other; last, because it fills the link's queue

Needs the standard library and the engine's own packages only, so that it also runs in a bare guest.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, pstdev

from outrider_netsim.core.engine_names import DEFAULT_PROBE_PACKETS, WAYS, WITH_NETWORK, ProbeEngine, Way
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.link import Link, seed_text
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES
from outrider_netsim.probe.ends import (
    FULL_BYTES,
    SMALL_BYTES,
    PacketTimes,
    PacketTrain,
    ProbeEnds,
    SocketEnds,
    VirtualEnds,
)
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace

SPACING_S = 0.005
LATE, QUICK = 0.998, 0.25
LOSS_SPACING_S = 0.0005
LOSS_SHARE = 10  # packets for loss and order, per packet for delays
QUIET_SHARE = 0.4
OVERLOAD, LOAD_S, EDGE_S = 1.25, 5.0, 0.8
MOST_PACKETS = 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value beside the profile's; None where nothing came, or the profile alone does not decide."""

    measured: float | None
    profile: float | None


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The figures of both ways, by name, and how they were measured."""

    profile: Profile
    engine: str
    seed: int
    seed_is_honoured: bool
    ways: dict[Way, dict[str, Figure]]
    started: datetime

    def as_json(self) -> dict[str, object]:
        """Return the figures with their circumstances; of the profile's traces, only the names."""
        return {
            "profile": self.profile.name,
            "engine": self.engine,
            **{way: {name: asdict(figure) for name, figure in figures.items()} for way, figures in self.ways.items()},
            "made_by": {
                "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                "seed": self.seed,
                "seed_is_honoured": self.seed_is_honoured,
                "started": self.started.isoformat(timespec="seconds"),
                "kernel": f"{platform.system()} {platform.release()}, {platform.machine()}",
                "cores": os.cpu_count(),
                "load_average": [round(load, 2) for load in os.getloadavg()],
                "python": platform.python_version(),
                "outrider": version("outrider"),
            },
        }


async def probe_profile(
    profile: Profile,
    engine: ProbeEngine = "auto",
    *,
    packets: int = DEFAULT_PROBE_PACKETS,
    seed: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ProbeReport:
    """Measure `profile` through an engine. Planned outages are left out: they would count as loss.

    Raises ProfileError for invalid arguments, EngineError when this machine cannot run the engine or measuring fails.
    """
    if not 2 <= packets <= MOST_PACKETS:
        raise ProfileError(f"packets={packets}: need 2 to {MOST_PACKETS}")
    seed = profile.seed if seed is None else seed
    started = datetime.now(UTC)
    async with _opened(replace(profile, outages=()), engine, seed) as (ends, name, is_honoured):
        say(f"{profile.name} through {name}; {seed_text(seed, is_honoured)}")
        ways = await _measure(ends, profile, packets, say)
    return ProbeReport(profile, name, seed, is_honoured, ways, started)


@contextlib.asynccontextmanager
async def _opened(profile: Profile, engine: ProbeEngine, seed: int) -> AsyncIterator[tuple[ProbeEnds, str, bool]]:
    if engine == "virtual":
        yield VirtualEnds(profile, seed), "virtual", True
        return
    wanted = WITH_NETWORK if engine == "auto" else (engine,)
    async with Link(profile, engine=wanted, seed=seed) as link:
        assert link.namespaces is not None
        with contextlib.ExitStack() as sockets:
            ends: list[socket.socket] = []
            for side, host in LINK_ADDRESSES.items():
                ends.append(sockets.enter_context(await link.namespaces.socket(side, "udp")))
                ends[-1].bind((host, 0))
            yield SocketEnds(ends[0], ends[1]), link.engine, link.seed_is_honoured


async def _measure(
    ends: ProbeEnds, profile: Profile, packets: int, say: Callable[[str], None]
) -> dict[Way, dict[str, Figure]]:
    directions = profile.directions
    settle_s = max(map(_settle_s, directions.values()))
    lone = PacketTrain(packets, max(map(_lone_spacing_s, directions.values())), settle_s)
    dense = PacketTrain(LOSS_SHARE * packets, max(map(_quiet_spacing_s, directions.values())), settle_s)
    seen = []
    for what, train in (("delay", lone), ("loss", dense)):
        say(f"{what}: {train.packets:,} packets each way, {train.packets * train.spacing_s:.0f} s")
        seen.append(await ends.send_train(train))
    figures = {way: _packet_figures(directions[way], seen[0][way], seen[1][way]) for way in WAYS}
    for way, direction in directions.items():
        if rate_bps := _full_rate(direction):
            say(f"throughput {way}: {LOAD_S:g} s")
            load = _load(way, direction, OVERLOAD * rate_bps)
            # At a kilobit a second not even one packet is through by then.
            passed = _passed_mbps((await ends.send_train(load))[way]) if load.packets else None
            figures[way]["throughput_mbps"] = Figure(passed, None if direction.trace else _passing_mbps(direction))
    return figures


def _packet_figures(direction: Direction, lone: PacketTimes, dense: PacketTimes) -> dict[str, Figure]:
    delays_ms = sorted(lone.delays_ms)
    # The faster of two copies, the slot or the trace decides how long a packet takes.
    decides = not (direction.trace or direction.slot_ms or (direction.duplicate and direction.jitter_ms))
    extra_ms = _serialization_s(direction) * 1000
    wanted = {
        "mean_ms": direction.mean_delay_ms + extra_ms,
        "deviation_ms": direction.delay_deviation_ms,
        **{f"p{share}_ms": 1000 * direction.quantile_s(share / 100) + extra_ms for share in (50, 99)},
    }
    measured: dict[str, float | None] = dict.fromkeys(wanted)
    if delays_ms:
        measured |= {"mean_ms": fmean(delays_ms), "deviation_ms": pstdev(delays_ms)}
        measured |= {f"p{share}_ms": delays_ms[int(share / 100 * len(delays_ms))] for share in (50, 99)}
    came = [when for when in dense.received_s if when is not None]
    overtaken = _overtaken_share(came) if came else None
    lost = 1 - len(came) / len(dense.sent_s)
    # A corrupt packet fails its checksum; with a second copy, both must.
    whole = 1 - direction.corrupt * (1 - direction.duplicate * (1 - direction.corrupt))
    return {
        **{name: Figure(measured[name], value if decides else None) for name, value in wanted.items()},
        "lost": Figure(lost, None if direction.trace else 1 - (1 - direction.mean_loss) * whole),
        "overtaken": Figure(overtaken, 0.0 if direction.in_order or not direction.jitter_ms else None),
    }


def _overtaken_share(arrivals_s: list[float]) -> float:
    """Return the share of packets, given in the order sent, before which a later one arrived."""
    earliest, overtaken = math.inf, 0
    for arrival in reversed(arrivals_s):
        overtaken += arrival > earliest
        earliest = min(earliest, arrival)
    return overtaken / len(arrivals_s)


def _passed_mbps(times: PacketTimes) -> float | None:
    """Return Mbit/s of the arrivals from EDGE_S after the first one until sending ended; None if too few."""
    came = sorted(when for when in times.received_s if when is not None and when <= times.sent_s[-1])
    settled = [when for when in came if when >= came[0] + EDGE_S]
    if len(settled) < 20:
        return None
    return (len(settled) - 1) * FULL_BYTES * 8 / (settled[-1] - settled[0]) / 1e6


def _passing_mbps(direction: Direction) -> float:
    """Return the rate at which packets arrive whole, each once, while more is offered than passes."""
    return direction.rate_bps * (1 - direction.corrupt) / (1 + direction.duplicate) / 1e6


def _serialization_s(direction: Direction) -> float:
    return SMALL_BYTES * 8 / direction.rate_bps if direction.rate_bps else 0.0


def _lone_spacing_s(direction: Direction) -> float:
    in_order_s = direction.quantile_s(LATE) - direction.quantile_s(QUICK) if direction.in_order else 0.0
    # Closer than half of the coherence, many packets would count as one.
    apart_s = direction.coherence_ms / 2000 if direction.jitter_ms else 0.0
    return max(SPACING_S, in_order_s, apart_s, _serialization_s(direction) / QUIET_SHARE)


def _quiet_spacing_s(direction: Direction) -> float:
    longest_s = (direction.mean_delay_ms + 6 * direction.delay_deviation_ms) / 1000
    # As packets of a train; a buffer before the rate gets them in bunches where they are kept in order.
    room = direction.queue_packets or (direction.buffer_bytes or 0) / SMALL_BYTES
    return max(LOSS_SPACING_S, _serialization_s(direction) / QUIET_SHARE, 2 * longest_s / room)


def _settle_s(direction: Direction) -> float:
    return 0.5 + (direction.mean_delay_ms + 10 * direction.delay_deviation_ms) / 1000


def _full_rate(direction: Direction) -> float:
    """Return the rate to exceed; 0 if there is none."""
    match direction.trace:
        case DeliveryTrace() as trace:
            return trace.mean_rate_bps
        case ConditionTrace(rate_bps=rates) if rates:
            return max(rates)
        case _:
            return direction.rate_bps


def _load(way: Way, direction: Direction, offered_bps: float) -> PacketTrain:
    spacing_s = FULL_BYTES * 8 / (offered_bps / max(0.01, 1 - direction.mean_loss))
    duration_s = LOAD_S + 2 * direction.mean_delay_ms / 1000
    return PacketTrain(int(duration_s / spacing_s), spacing_s, _settle_s(direction), FULL_BYTES, (way,), duration_s)
