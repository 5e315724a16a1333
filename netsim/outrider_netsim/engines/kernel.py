"""The kernel engine: a veth pair under real TCP, shaped by the kernel's own netem and tbf. As root or as any user.

    client -> splice -> 10.77.0.1 = A's veth ==[ netem, tbf ]== B's veth = 10.77.0.2 -> splice -> server

The nearest to what the papers measured with `tc`. netem does not know outages and traces: those are changes that this
process makes when their time has come, to the event loop's millisecond. A Mahimahi trace cannot be made that way.
"""

from __future__ import annotations

import asyncio
import hashlib
from itertools import count
from typing import Final

from outrider_netsim.core.addresses import FREE_PORT, Address
from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.kernel_support import kernel_support
from outrider_netsim.engines.namespace_link import NamespaceLink
from outrider_netsim.engines.netem import QdiscConfig, qdisc_config
from outrider_netsim.engines.shaped_pair import SIDES, QdiscCounters, ShapedPair
from outrider_netsim.impairments.path import LinkStats, PathStats, direction_in_row
from outrider_netsim.namespaces.interfaces import Side
from outrider_netsim.profiles.outages import run_outages
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace


class KernelLink(NamespaceLink):
    """A link in front of the server at `upstream`; clients connect to `address` instead.

    async with KernelLink(profile_named("paper-5g"), Address("127.0.0.1", 50051), seed=1) as link:
        ...                     # connect to link.address
        link.cut()              # packets are lost both ways; TCP tries again by its own timers
        link.restore()

    netem takes a seed since Linux 6.6 (`seed_is_honoured`); before, its luck is new each time.
    """

    engine: Final = "kernel"

    def __init__(self, profile: Profile, upstream: Address, seed: int = 0, *, listen: Address = FREE_PORT) -> None:
        super().__init__(upstream, listen)
        self.profile = profile
        self.is_cut = False
        self._in_outage = False
        self._lanes = tuple(KernelLane(side, seed) for side in SIDES)
        self._pair: ShapedPair | None = None
        self._plans: list[asyncio.Task[None]] = []
        self._traces: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Raises EngineError where the machine cannot, OSError when the address cannot be had; nothing is left then."""
        if reason := kernel_support():
            raise EngineError(reason)
        check_traces(self.profile)
        await super().start()
        self._plan()

    async def aclose(self) -> None:
        """Reset all connections, end the command and the namespaces; safe to call twice."""
        await _end(self._plans)
        await _end(self._traces)
        await self._bridge.aclose()
        if self._pair is not None:
            self._pair.close()
            self._pair = None
        await self.namespaces.aclose()

    @property
    def seed_is_honoured(self) -> bool:
        """Whether this kernel's netem took the seed."""
        return self._started.count("A").seed is not None

    def cut(self) -> None:
        """The radio is gone: what enters is dropped, what is under way still arrives, new connections hang."""
        self._switch(is_cut=True, in_outage=self._in_outage)

    def restore(self) -> None:
        """The radio is back, but for planned outages; TCP delivers with its next retransmission."""
        self._switch(is_cut=False, in_outage=self._in_outage)

    def set(self, profile: Profile) -> None:
        """Change the link for all that enters it from now on; the rate also for what waits. Planned outages stay."""
        check_traces(profile)
        for lane, shaping in zip(self._lanes, self._shapings(profile), strict=True):
            self._started.shape(lane.side, shaping)
        self.profile = profile
        for task in self._traces:
            task.cancel()
        self._follow_traces()

    @property
    def stats(self) -> LinkStats:
        """Packets of both directions, and connections. netem counts what a full queue turns away with its losses, and
        not the bytes of either: `lost` holds both, and `bytes_in` neither."""
        up, down = (lane.update_stats(self._started.count(lane.side), self._is_down) for lane in self._lanes)
        return LinkStats(up, down, self._bridge.connections)

    async def _make_link(self) -> None:
        shapings = await asyncio.to_thread(self._shapings, self.profile)
        self._pair = await ShapedPair.make(self.namespaces, *shapings)

    def _shapings(self, profile: Profile) -> tuple[QdiscConfig, QdiscConfig]:
        """Both directions from now on. Raises EngineError before either is changed."""
        directions = _now(profile.up), _now(profile.down)
        for direction in directions:
            qdisc_config(direction, 0)
        up, down = self._lanes
        up.direction, down.direction = directions
        return up.shaping(self._is_down), down.shaping(self._is_down)

    def _plan(self) -> None:
        if self.profile.outages:
            self._plans.append(asyncio.create_task(run_outages(_OutageSwitch(self), self.profile.outages)))
        self._follow_traces()

    def _follow_traces(self) -> None:
        directions = self.profile.up, self.profile.down
        self._traces = [
            asyncio.create_task(self._follow(lane, direction, direction.trace))
            for lane, direction in zip(self._lanes, directions, strict=True)
            if isinstance(direction.trace, ConditionTrace)
        ]

    async def _follow(self, lane: KernelLane, direction: Direction, trace: ConditionTrace) -> None:
        """Bring each row into force when its time has come, for ever."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        for number in count(1):
            turn, row = divmod(number, len(trace.times_s))
            coming = direction_in_row(direction, row)
            await asyncio.to_thread(qdisc_config, coming, 0)  # a new delay table takes some ms; it is kept
            await asyncio.sleep(started_at + turn * trace.period_s + trace.times_s[row] - loop.time())
            lane.direction = coming
            self._apply(lane)

    def _switch(self, *, is_cut: bool, in_outage: bool) -> None:
        was_down = self._is_down
        for lane in self._lanes:
            lane.update_stats(self._started.count(lane.side), was_down)
        self.is_cut, self._in_outage = is_cut, in_outage
        if self._is_down == was_down:
            return
        for lane in self._lanes:
            self._apply(lane)
        if self._is_down:
            self._bridge.cut()
        else:
            self._bridge.restore()

    def _apply(self, lane: KernelLane) -> None:
        self._started.shape(lane.side, lane.shaping(self._is_down))

    @property
    def _is_down(self) -> bool:
        return self.is_cut or self._in_outage

    @property
    def _started(self) -> ShapedPair:
        if self._pair is None:
            raise RuntimeError("the link is not started: use `async with`")
        return self._pair


class KernelLane:
    """`direction` is what holds now: a row of the profile's trace, where it has one."""

    def __init__(self, side: Side, seed: int) -> None:
        self.side = side
        self.direction = Direction()
        self._seed = f"{seed}/{'up' if side == 'A' else 'down'}"
        self._changes = count()
        self._dropped = self._lost = self._by_outage = 0

    def shaping(self, is_cut: bool) -> QdiscConfig:
        """What to tell the kernel now. netem starts anew with every change, so each has a seed of its own."""
        digest = hashlib.sha256(f"{self._seed}/{next(self._changes)}".encode()).digest()
        return qdisc_config(self.direction, int.from_bytes(digest[:8], "big"), is_cut=is_cut)

    def update_stats(self, counted: QdiscCounters, was_down: bool) -> PathStats:
        """Everything so far; packets dropped since the last booking count as the outage's if the link was down.

        Call before the link goes down or comes back, so that the reason is one.
        """
        dropped, self._dropped = counted.dropped - self._dropped, counted.dropped
        if was_down:
            self._by_outage += dropped
        else:
            self._lost += dropped
        return PathStats(
            packets_in=counted.packets_out + counted.waiting_packets + counted.dropped,
            packets_out=counted.packets_out,
            lost=self._lost,
            dropped_by_outage=self._by_outage,
            bytes_in=counted.bytes_out + counted.waiting_bytes,
            bytes_out=counted.bytes_out,
        )


class _OutageSwitch:
    """The link as its planned outages see it: they do not restore what was cut by hand, nor the other way round."""

    def __init__(self, link: KernelLink) -> None:
        self._link = link

    def cut(self) -> None:
        self._link._switch(is_cut=self._link.is_cut, in_outage=True)

    def restore(self) -> None:
        self._link._switch(is_cut=self._link.is_cut, in_outage=False)


def check_traces(profile: Profile) -> None:
    """Raises EngineError for a trace that netem cannot follow."""
    for way, direction in (("up", profile.up), ("down", profile.down)):
        if isinstance(direction.trace, DeliveryTrace):
            raise EngineError(
                f"{way}.trace {direction.trace.name!r}: netem cannot send at the milliseconds of a Mahimahi trace, "
                "use --engine tun"
            )


def _now(direction: Direction) -> Direction:
    """`direction` as its trace begins."""
    return direction_in_row(direction, 0) if isinstance(direction.trace, ConditionTrace) else direction


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
