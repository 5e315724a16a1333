"""One probe from profile to JSON: open the engine, plan, measure, report, and record how it was made.

Needs the standard library and the engine's own packages only, so that it also runs in a bare guest:

    probed = asyncio.run(probe_profile(profile_named("paper-4g"), "kernel"))
    print(json.dumps(probed.as_json()))
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from statistics import fmean, pstdev

from outrider_netsim.core.addresses import parse_address
from outrider_netsim.core.engine_names import (
    DEFAULT_CONGESTION,
    DEFAULT_LOSS_PACKETS,
    DEFAULT_PROBE_PACKETS,
    ProbeEngine,
)
from outrider_netsim.link import Link, seed_text
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES, Side
from outrider_netsim.namespaces.namespaces import Namespaces
from outrider_netsim.probe.circumstances import circumstances, profile_as_json
from outrider_netsim.probe.measurement import ProbeMeasurements, ProbeTarget, check_counts, measure, plan_probe
from outrider_netsim.probe.report import ProbeReport, report
from outrider_netsim.probe.samples import PacketTimes
from outrider_netsim.probe.targets import DatagramTarget, StreamTarget, VirtualTarget, listening_socket
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.tcp.rtt import MIN_RTO_S

TIMER_SLACK_S = 0.04  # Linux's timers fire up to 36 ms late, in the model as well


@dataclass(frozen=True, slots=True)
class OpenedTarget:
    """A probe target, its engine, and why that engine was chosen."""

    target: ProbeTarget
    engine: str
    why: str
    seed_is_honoured: bool = True


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """A finished probe."""

    profile: Profile
    engine: str
    why: str
    seed: int
    seed_is_honoured: bool
    congestion: str
    started: datetime
    ended: datetime
    seen: ProbeMeasurements
    report: ProbeReport

    def as_json(self) -> dict[str, object]:
        """Return everything but the single packets."""
        return {
            "profile": profile_as_json(self.profile),
            "engine": self.engine,
            "why": self.why,
            "transport": self.seen.samples.transport,
            **self.report.as_json(),
            "control": {way: _control_as_json(times) for way, times in self.seen.control.items()},
            "sent": {
                "link_bytes": self.seen.samples.link_bytes,
                "delay": asdict(self.seen.plan.delay),
                "loss": asdict(self.seen.plan.loss),
                "loads": [asdict(load) for load in self.seen.plan.loads],
            },
            "made_by": {
                **circumstances(self.started, self.ended),
                "seed": self.seed,
                "seed_is_honoured": self.seed_is_honoured,
                "congestion": self.congestion,
            },
        }


async def probe_profile(
    profile: Profile,
    engine: ProbeEngine = "auto",
    *,
    packets: int = DEFAULT_PROBE_PACKETS,
    loss_packets: int = DEFAULT_LOSS_PACKETS,
    seed: int | None = None,
    congestion: str = DEFAULT_CONGESTION,
    say: Callable[[str], None] = lambda _: None,
) -> ProbeRun:
    """Measure `profile` through an engine and report. Planned outages are left out: they would count as loss.

    Raises ProfileError for invalid arguments, EngineError when this machine cannot run the engine or measuring fails.
    """
    check_counts(packets, loss_packets)
    seed = profile.seed if seed is None else seed
    probed = replace(profile, outages=())
    started = datetime.now(UTC)
    async with _opened(probed, engine, seed, congestion) as opened:
        seeded = seed_text(seed, opened.seed_is_honoured)
        say(f"{profile.name} through {opened.engine} ({opened.why}); {seeded}, {congestion}")
        planned = plan_probe(opened.target, probed, packets, loss_packets)
        seen = await measure(opened.target, planned, say)
    judged = report(seen.samples, probed, seed)
    return ProbeRun(
        profile,
        opened.engine,
        opened.why,
        seed,
        opened.seed_is_honoured,
        congestion,
        started,
        datetime.now(UTC),
        seen,
        judged,
    )


@contextlib.asynccontextmanager
async def _opened(profile: Profile, engine: ProbeEngine, seed: int, congestion: str) -> AsyncIterator[OpenedTarget]:
    if engine == "virtual":
        yield OpenedTarget(VirtualTarget(profile, seed), "virtual", "as asked")
        return
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(listening_socket())
        upstream = f"127.0.0.1:{listener.getsockname()[1]}"
        async with Link(profile, upstream, engine, seed, congestion=congestion) as link:
            if link.namespaces is None:
                target: ProbeTarget = StreamTarget(
                    parse_address("link", link.address), listener, _stall_s(profile), _quiet_s(profile)
                )
            else:
                ends = [sockets.enter_context(await _end(link.namespaces, side)) for side in ("A", "B")]
                target = DatagramTarget(ends[0], ends[1])
            yield OpenedTarget(target, link.engine, link.why, link.seed_is_honoured)


async def _end(namespaces: Namespaces, side: Side) -> socket.socket:
    end = await namespaces.socket(side, "udp")
    end.bind((LINK_ADDRESSES[side], 0))
    return end


def _stall_s(profile: Profile) -> float:
    """Return what no message takes but one that TCP has sent again: its timeout is SRTT + 200 ms at least."""
    return MIN_RTO_S + profile.round_trip_ms / 2000


def _quiet_s(profile: Profile) -> float:
    """Return how long after a message the next one is sure to find a connection idle, a retransmission included."""
    deviation_s = math.hypot(profile.up.delay_deviation_ms, profile.down.delay_deviation_ms) / 1000
    timeout_s = profile.round_trip_ms / 1000 + max(MIN_RTO_S, 4 * deviation_s) + TIMER_SLACK_S
    return timeout_s + max(_slowest_s(profile.up), _slowest_s(profile.down))


def _slowest_s(direction: Direction) -> float:
    return (direction.mean_delay_ms + 6 * direction.delay_deviation_ms) / 1000


def _control_as_json(times: PacketTimes) -> dict[str, object]:
    delays_ms = sorted(times.delays_ms)
    return {
        "packets": len(times.sent_s),
        "lost": sum(times.lost),
        "mean_delay_ms": fmean(delays_ms) if delays_ms else None,
        "deviation_ms": pstdev(delays_ms) if delays_ms else None,
        "p99_ms": delays_ms[int(0.99 * len(delays_ms))] if delays_ms else None,
    }
