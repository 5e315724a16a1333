"""The kernel engine: a veth pair under real TCP, shaped by the kernel's own netem and tbf. Needs no root.

    client -> splice -> 10.77.0.1 = A's veth ==[ netem, tbf ]== B's veth = 10.77.0.2 -> splice -> server

This comes closest to what the papers measured with `tc`. netem knows no outages, traces and coherent delays: this
process makes those changes at their time, to the event loop's millisecond. Mahimahi traces are too fine for that.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from outrider_netsim.core.async_resource import cancel_all
from outrider_netsim.core.engine_names import Way
from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.namespace_link import NamespaceLink
from outrider_netsim.engines.netem import QdiscConfig, qdisc_config
from outrider_netsim.engines.shaped_pair import SIDES, QdiscCounters, ShapedPair
from outrider_netsim.impairments.delay import DelayDraws
from outrider_netsim.impairments.path import LinkStats, PathStats, direction_in_row
from outrider_netsim.namespaces.interfaces import Side
from outrider_netsim.profiles.outages import OutageSwitch, run_outages
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace

STEPS_SHARE = 1 / 20  # of the coherence, for which a delay holds
LEAST_STEP_S = 0.002


class KernelLink(NamespaceLink):
    """A link through netem, which takes a seed since Linux 6.6 (`seed_is_honoured`); before that every run differs."""

    engine = "kernel"

    def __init__(self, plan: LinkPlan) -> None:
        if plan.recording:
            raise EngineError("netem does not say what becomes of a packet: to record it, use --engine tun")
        super().__init__(plan)
        self._out_ways: frozenset[Way] = frozenset()
        holds = any(outage.hold for outage in self.profile.outages)
        self._lanes = tuple(KernelLane(side, plan.seed, holds=holds) for side in SIDES)
        self._pair: ShapedPair | None = None
        self._plans: list[asyncio.Task[None]] = []
        self._followers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        check_traces(self.profile)
        await super().start()
        self._plan()

    async def aclose(self) -> None:
        """Reset all connections, end the command and the namespaces; safe to call twice."""
        await cancel_all([*self._plans, *self._followers])
        await self._close_splices()
        self._pair = None
        await self.namespaces.aclose()

    @property
    def seed_is_honoured(self) -> bool:
        """True if this kernel's netem accepted the seed."""
        return self._started.count("A").seed is not None

    def set_cut(self, ways: frozenset[Way]) -> None:
        """Drop packets that enter these ways from now on; those under way still arrive, and new connections hang."""
        self._switch(ways, self._out_ways)

    def set(self, profile: Profile) -> None:
        """Change the link for packets that enter from now on, the rate also for waiting ones. Planned outages stay."""
        check_traces(profile)
        for lane, shaping in zip(self._lanes, self._shapings(profile), strict=True):
            # Counted before the change, which may end a buffer and its counter.
            lane.update_stats(self._started.count(lane.side), self._is_down(lane))
            self._started.shape(lane.side, shaping)
        self.profile = profile
        for task in self._followers:
            task.cancel()
        self._follow_profile()

    @property
    def stats(self) -> LinkStats:
        """Counters of both directions, and connections.

        netem counts packets that its full queue (`queue_packets`) refuses with its losses: `lost` includes both. Bytes
        of dropped packets are not in `bytes_in`. netem does not count what it duplicates, which is in `packets_in`, or
        corrupts.
        """
        up, down = (lane.update_stats(self._started.count(lane.side), self._is_down(lane)) for lane in self._lanes)
        return LinkStats(up, down, self._connections)

    async def _make_link(self) -> None:
        shapings = await asyncio.to_thread(self._shapings, self.profile)
        self._pair = ShapedPair(self._clients, *shapings)

    def _shapings(self, profile: Profile) -> tuple[QdiscConfig, QdiscConfig]:
        """Return the qdiscs of both directions. Raises EngineError before either is changed."""
        directions = direction_in_row(profile.up, 0), direction_in_row(profile.down, 0)
        for direction in directions:
            qdisc_config(direction, 0)
        up, down = self._lanes
        up.change(directions[0])
        down.change(directions[1])
        return up.shaping(self._is_down(up)), down.shaping(self._is_down(down))

    def _plan(self) -> None:
        for hold, switch in ((False, self._drop), (True, self._hold)):
            planned = [replace(outage, hold=False) for outage in self.profile.outages if outage.hold == hold]
            if planned:
                self._plans.append(asyncio.create_task(run_outages(OutageSwitch(switch), planned)))
        self._follow_profile()

    def _follow_profile(self) -> None:
        directions = self.profile.up, self.profile.down
        self._followers = [
            asyncio.create_task(self._follow(lane, direction, direction.trace))
            for lane, direction in zip(self._lanes, directions, strict=True)
            if isinstance(direction.trace, ConditionTrace)
        ] + [asyncio.create_task(self._follow_delay(lane)) for lane in self._lanes if lane.delay_s is not None]

    async def _follow(self, lane: KernelLane, direction: Direction, trace: ConditionTrace) -> None:
        """Apply each row of the trace at its time, forever."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        for number in count(1):
            turn, row = divmod(number, len(trace.times_s))
            coming = direction_in_row(direction, row)
            # Computed ahead and cached: a new delay table takes some ms, which would delay the change and the loop.
            await asyncio.to_thread(qdisc_config, coming, 0)
            await asyncio.sleep(started_at + turn * trace.period_s + trace.times_s[row] - loop.time())
            lane.change(coming)
            self._apply(lane)

    async def _follow_delay(self, lane: KernelLane) -> None:
        """Change a coherent delay in small steps, forever."""
        step_s = max(LEAST_STEP_S, lane.direction.coherence_ms * STEPS_SHARE / 1000)
        while True:
            await asyncio.sleep(step_s)
            lane.draw()
            self._started.change_delay(lane.side, lane.shaping(self._is_down(lane)).netem)

    def _switch(self, cut: frozenset[Way], out: frozenset[Way]) -> None:
        was_down = {lane: self._is_down(lane) for lane in self._lanes}
        self._count_drops(was_down)
        self.cut_ways, self._out_ways = cut, out
        changed = {lane: was for lane, was in was_down.items() if self._is_down(lane) != was}
        for lane in changed:
            self._apply(lane)
        # Changing the qdiscs takes milliseconds, in which the outage still dropped every packet.
        self._count_drops({lane: was for lane, was in changed.items() if was})
        if changed:
            self._ignore_clients(bool(cut | out))

    def _count_drops(self, was_down: Mapping[KernelLane, bool]) -> None:
        """Book the drops so far as losses or as the outage's, whichever it was."""
        for lane, was in was_down.items():
            lane.update_stats(self._started.count(lane.side), was)

    def _drop(self, out: frozenset[Way]) -> None:
        """Begin or end a planned outage, whatever was cut by hand."""
        self._switch(self.cut_ways, out)

    def _hold(self, held: frozenset[Way]) -> None:
        for lane in self._lanes:
            self._started.hold(lane.side, lane.way in held)

    def _apply(self, lane: KernelLane) -> None:
        self._started.shape(lane.side, lane.shaping(self._is_down(lane)))

    def _is_down(self, lane: KernelLane) -> bool:
        return lane.way in self.cut_ways | self._out_ways

    @property
    def _started(self) -> ShapedPair:
        if self._pair is None:
            raise RuntimeError("the link is not started: use `async with`")
        return self._pair


class KernelLane:
    """One direction: its current settings (a row of the trace, where there is one) and its counters."""

    def __init__(self, side: Side, seed: int, *, holds: bool = False) -> None:
        self.side = side
        self.way: Way = "up" if side == "A" else "down"
        self._holds = holds
        self.direction = Direction()
        self.delay_s: float | None = None  # that of now, where delays are coherent
        self._seed = f"{seed}/{self.way}"
        self._draws = DelayDraws(self.direction, random.Random(f"{self._seed}/delay"))
        self._changes = count()
        self._dropped = self._lost = self._by_outage = 0
        self._by_buffer = self._by_buffers = 0  # of the current buffer, and of all

    def change(self, direction: Direction) -> None:
        """Take other settings."""
        self.direction = direction
        self._draws.set(direction)
        self.draw()

    def draw(self) -> None:
        """Draw the delay of now from the last one, where delays are coherent."""
        is_coherent = self._draws.is_correlated and self.direction.coherence_ms
        self.delay_s = self._draws.draw_s(time.monotonic()) if is_coherent else None

    def shaping(self, is_cut: bool) -> QdiscConfig:
        """Return the qdiscs for the current settings."""
        # netem reseeds with every change: the same seed again would repeat the same losses from the start.
        digest = hashlib.sha256(f"{self._seed}/{next(self._changes)}".encode()).digest()
        return qdisc_config(
            self.direction,
            int.from_bytes(digest[:8], "big"),
            is_cut=is_cut,
            delay_s=self.delay_s,
            holds=self._holds,
        )

    def update_stats(self, counted: QdiscCounters, was_down: bool) -> PathStats:
        """Return all counters; packets dropped since the last call count as the outage's if the link was down.

        Call before the link goes down or comes back, so that they have one reason.
        """
        # A new buffer counts from 0.
        by_buffer = counted.dropped_by_buffer - (self._by_buffer if counted.dropped_by_buffer >= self._by_buffer else 0)
        self._by_buffer = counted.dropped_by_buffer
        self._by_buffers += by_buffer
        dropped, self._dropped = counted.dropped - self._dropped - by_buffer, counted.dropped
        if was_down:
            self._by_outage += dropped
        else:
            self._lost += dropped
        return PathStats(
            packets_in=counted.packets_out + counted.waiting_packets + counted.dropped,
            packets_out=counted.packets_out,
            lost=self._lost,
            dropped_by_queue=self._by_buffers,
            dropped_by_outage=self._by_outage,
            bytes_in=counted.bytes_out + counted.waiting_bytes,
            bytes_out=counted.bytes_out,
        )


def check_traces(profile: Profile) -> None:
    """Raise EngineError for a trace that netem cannot follow."""
    for way, direction in profile.directions.items():
        if isinstance(direction.trace, DeliveryTrace):
            raise EngineError(
                f"{way}.trace {direction.trace.name!r}: netem cannot send at the milliseconds of a Mahimahi trace, "
                "use --engine tun"
            )
