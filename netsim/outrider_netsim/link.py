"""One interface to the engines that put a profile under real TCP connections, and the choice between them.

`auto` takes the first of kernel, tun and proxy that this machine allows, the most realistic first. Starting an engine
is the check: it runs, or raises EngineError and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, assert_never, cast

from outrider_netsim.core.addresses import CLIENT_VARIABLE, Address, parse_address
from outrider_netsim.core.async_resource import AsyncResource, cancel_all
from outrider_netsim.core.engine_names import (
    BEST_FIRST,
    DEFAULT_CONGESTION,
    DEFAULT_UPSTREAM,
    PLACEHOLDER,
    WAYS,
    EngineChoice,
    EngineName,
    Way,
)
from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_netsim.engines.engine_link import EngineLink, LinkPlan
from outrider_netsim.impairments.path import LinkStats
from outrider_netsim.profiles.profile import Profile
from outrider_netsim.recording.recorder import RecordingFiles

if TYPE_CHECKING:
    from outrider_netsim.namespaces.namespaces import Namespaces  # Linux only

LOOPBACK = "127.0.0.1"
DRAIN_STEP_S, STALLED_S = 0.02, 3.0
DRAIN_S = 60.0  # at most: what a command has left running may send for ever
T = TypeVar("T")


class Link(AsyncResource):
    """A link to the server at `upstream`; clients connect to `address` instead.

        async with Link(profile_named("paper-4g"), "127.0.0.1:50051") as link:
            print(link.engine, link.why)
            ...                     # connect to link.address
            link.cut()              # nothing passes
            link.restore()

    `engine` may also be a sequence of names to try in order. `seed` (default: the profile's) fixes the fate of the n-th
    packet of each direction. The profile's planned outages count from the start. `congestion` names the congestion
    control of the connections over the link: "cubic", "reno", or with kernel and tun any other that this kernel has.
    `pcap` and `packet_log` name files for a capture of its packets (kernel, tun) and a log of them in CSV.
    Raises ProfileError for invalid arguments and, on start, EngineError when this machine cannot run the link.
    """

    def __init__(
        self,
        profile: Profile,
        upstream: str = DEFAULT_UPSTREAM,
        engine: EngineChoice | Sequence[EngineName] = "auto",
        seed: int | None = None,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        congestion: str = DEFAULT_CONGESTION,
        pcap: str | Path | None = None,
        packet_log: str | Path | None = None,
    ) -> None:
        server = parse_address("upstream", upstream)
        self._candidates = candidates(engine)
        seed = profile.seed if seed is None else seed
        recording = RecordingFiles(*(None if file is None else str(file) for file in (pcap, packet_log)))
        self._plan = LinkPlan(profile, server, seed, Address(host, port), congestion, recording)
        self._engine: EngineLink | None = None
        self._why = ""

    async def start(self) -> Self:
        """Start the first engine that works.

        Raises EngineError when none does, OSError when it cannot listen, ProfileError when it cannot write a recording.
        """
        self._plan.recording.create()
        # From a reason to the engines that gave it.
        refusals: dict[str, list[str]] = {}
        for name in self._candidates:
            try:
                engine = build_engine(name, self._plan)
                await engine.start()
            except EngineError as error:
                refusals.setdefault(str(error), []).append(name)
            else:
                self._engine, self._why = engine, _why(self._candidates, refusals)
                return self
        raise EngineError(_describe(refusals))

    async def aclose(self) -> None:
        """Stop the link and remove everything it created; safe to call twice."""
        if self._engine is not None:
            await self._engine.aclose()

    @property
    def engine(self) -> str:
        return self._started.engine

    @property
    def seed(self) -> int:
        return self._plan.seed

    @property
    def seed_is_honoured(self) -> bool:
        """False with the kernel engine before Linux 6.6, where every run is different."""
        return self._started.seed_is_honoured

    @property
    def congestion(self) -> str:
        """The congestion control of the connections over the link."""
        return self._plan.congestion

    @property
    def why(self) -> str:
        """Why this engine was chosen."""
        return self._why

    @property
    def profile(self) -> Profile:
        return self._plan.profile if self._engine is None else self._engine.profile

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return self._started.address

    @property
    def namespaces(self) -> Namespaces | None:
        """The namespaces of the link's two ends; None with the proxy engine, which has none."""
        return self._started.namespaces

    @property
    def is_cut(self) -> bool:
        return bool(self.cut_ways)

    @property
    def cut_ways(self) -> frozenset[Way]:
        """The directions that are cut."""
        return self._started.cut_ways

    @property
    def stats(self) -> LinkStats:
        return self._started.stats

    @property
    def stayed(self) -> Mapping[int, int]:
        """Connections of commands that did not pass the link, by the port on their side's own loopback."""
        return self._started.stayed

    def cut(self, ways: Sequence[Way] = WAYS) -> None:
        """Cut the link: nothing passes these ways ("up", "down"), and new connections hang."""
        self._started.cut(ways)

    def restore(self, ways: Sequence[Way] = WAYS) -> None:
        """Restore the link after `cut`."""
        self._started.restore(ways)

    async def answered(self) -> None:
        """Wait for the first byte of an answer from a server behind the link."""
        await self._started.answer_begun.wait()

    def set(self, profile: Profile) -> None:
        """Change the link for packets that enter from now on; planned outages stay those of the start."""
        self._started.set(profile)

    async def run(
        self,
        argv: Sequence[str],
        upstreams: Sequence[Address] = (),
        env: Mapping[str, str] | None = None,
        *,
        clients: int = 1,
    ) -> int:
        """Run a command behind the link and return its exit status (128 + n for signal n).

        With `clients` it runs so many times at once, each with its number (from 0) in OUTRIDER_CLIENT, and all share
        the link; the status is then the first that is not 0.

        With kernel and tun the command has its own network, where 127.0.0.1 and the port of each upstream (default:
        the link's) lead through the link. {link} in its arguments is replaced by the first upstream's address there,
        and OUTRIDER_LINK_ADDRESS holds the same. Raises OSError when the command cannot be executed.
        """
        if clients < 1:
            raise ProfileError(f"clients={clients}: need at least 1")
        behind = tuple(upstreams) or (self._plan.upstream,)
        inside = self.address if self.engine == "proxy" else str(Address(LOOPBACK, behind[0].port))
        running = self._started.run(
            [word.replace(PLACEHOLDER, inside) for word in argv],
            behind,
            [{CLIENT_VARIABLE: str(number), **(env or {})} for number in range(clients)],
        )
        statuses = await self.while_up(running)
        return next((status for status in statuses if status), 0)

    async def drained(self) -> bool:
        """Wait while what ended commands have sent still arrives at the servers; False where some of it did not."""
        now = asyncio.get_running_loop().time
        arrived, stalled_at, give_up_at = -1, 0.0, now() + DRAIN_S
        while True:
            await asyncio.sleep(DRAIN_STEP_S)
            if not self._started.is_sending:
                return True
            if (packets := self.stats.up.packets_out) != arrived:
                arrived, stalled_at = packets, now() + STALLED_S
            if now() > min(stalled_at, give_up_at):
                return False

    async def while_up(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; raise EngineError with the reason when the engine ends by itself before."""
        task = asyncio.create_task(work)
        watches = [asyncio.create_task(watch) for watch in self._started.watches()]
        try:
            await asyncio.wait([task, *watches], return_when=asyncio.FIRST_COMPLETED)
            for watch in watches:
                if watch.done():
                    watch.result()
            return await task
        finally:
            await cancel_all([task, *watches])

    @property
    def _started(self) -> EngineLink:
        if self._engine is None:
            raise RuntimeError("the link is not started: use `async with`")
        return self._engine


def seed_text(seed: int, is_honoured: bool) -> str:
    """Say which seed a link has, and whether that means anything."""
    return f"seed {seed}" if is_honoured else f"seed {seed} (this kernel's netem takes none: runs differ)"


def candidates(engine: EngineChoice | Sequence[EngineName]) -> tuple[EngineName, ...]:
    """Return the engines to try, in order. Raises ProfileError for an unknown name."""
    if engine == "auto":
        return BEST_FIRST
    wanted = (engine,) if isinstance(engine, str) else tuple(engine)
    if "virtual" in map(str, wanted):
        raise ProfileError("engine 'virtual' has no address for real programs: use VirtualLink (docs/links.md)")
    for name in wanted:
        if name not in BEST_FIRST:
            raise ProfileError(f"engine {name!r} is unknown: choose auto, {', '.join(BEST_FIRST)}")
    return cast(tuple[EngineName, ...], wanted)


def build_engine(name: EngineName, plan: LinkPlan) -> EngineLink:
    """Create an engine without starting it. Raises EngineError when a package is not installed."""
    if name != "proxy" and sys.platform != "linux":
        raise EngineError(f"needs Linux, this is {sys.platform}: use --engine proxy")
    try:
        kind = _class_of(name)
    except ModuleNotFoundError as error:
        raise EngineError(f"{error.name} is not installed: pip install 'outrider[netsim]'") from None
    return kind(plan)


def _class_of(name: EngineName) -> type[EngineLink]:
    match name:
        case "kernel":
            from outrider_netsim.engines.kernel import KernelLink

            return KernelLink
        case "tun":
            from outrider_netsim.engines.tun import TunLink

            return TunLink
        case "proxy":
            from outrider_netsim.engines.proxy import ProxyLink

            return ProxyLink
        case _:
            assert_never(name)


def _why(wanted: Sequence[EngineName], refusals: Mapping[str, Sequence[str]]) -> str:
    if len(wanted) == 1:
        return "as asked"
    return f"the best that this machine allows ({_describe(refusals)})" if refusals else "the best there is"


def _describe(refusals: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{', '.join(engines)}: {reason}" for reason, engines in refusals.items())
