"""The base of all engines: what they are built from, and what a Link asks of them."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from outrider_netsim.core.addresses import FREE_PORT, Address, check_port
from outrider_netsim.core.async_resource import AsyncResource
from outrider_netsim.core.engine_names import DEFAULT_CONGESTION, WAYS, EngineName, Way
from outrider_netsim.impairments.path import LinkStats
from outrider_netsim.profiles.profile import Profile
from outrider_netsim.recording.recorder import NO_RECORDING, RecordingFiles

if TYPE_CHECKING:
    from outrider_netsim.namespaces.namespaces import Namespaces  # Linux only


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """A link in front of the server at `upstream`. Raises ProfileError for impossible ports."""

    profile: Profile
    upstream: Address
    seed: int = 0  # fixes the fate of the n-th packet of each direction; real time decides which packet that is
    listen: Address = FREE_PORT
    congestion: str = DEFAULT_CONGESTION
    recording: RecordingFiles = NO_RECORDING

    def __post_init__(self) -> None:
        check_port("upstream port", self.upstream.port)
        check_port("port", self.listen.port, least=0)


class EngineLink(AsyncResource):
    """A link through one engine; clients connect to `address`.

    async with TunLink(LinkPlan(profile_named("paper-5g"), Address("127.0.0.1", 50051))) as link:
        ...                     # connect to link.address
        link.cut()              # packets are lost both ways; TCP retransmits by its own timers
        link.restore()          # and delivers with its next retransmission

    `start` raises EngineError, or OSError when it cannot listen; nothing is left behind then.
    """

    engine: ClassVar[EngineName]
    namespaces: Namespaces | None = None  # of the link's two ends, if it has such
    stayed: Mapping[int, int] = MappingProxyType({})  # connections that did not pass, by their port on A's own loopback

    def __init__(self, plan: LinkPlan) -> None:
        self.plan = plan
        self.profile = plan.profile
        self.cut_ways: frozenset[Way] = frozenset()  # between `cut` and `restore`; planned outages do not count
        self.answer_begun = asyncio.Event()  # of a server, on any connection

    @property
    @abstractmethod
    def address(self) -> str:
        """HOST:PORT where clients in this process's network reach the upstream through the link."""

    @property
    def seed_is_honoured(self) -> bool:
        return True

    def watches(self) -> list[Coroutine[None, None, None]]:
        """Return what waits for a part of the running engine to end by itself, and then raises EngineError."""
        return []

    @property
    @abstractmethod
    def is_sending(self) -> bool:
        """True until all that clients have sent, to the ends of their streams, is with the servers."""

    @property
    @abstractmethod
    def stats(self) -> LinkStats:
        """Counters of both directions, and connections."""

    def cut(self, ways: Sequence[Way] = WAYS) -> None:
        """Drop packets that enter these ways from now on; new connections hang."""
        self.set_cut(self.cut_ways.union(ways))

    def restore(self, ways: Sequence[Way] = WAYS) -> None:
        """Undo `cut`; planned outages stay. TCP delivers with its next retransmission."""
        self.set_cut(self.cut_ways.difference(ways))

    @abstractmethod
    def set_cut(self, ways: frozenset[Way]) -> None:
        """Cut these directions and restore the others."""

    @abstractmethod
    def set(self, profile: Profile) -> None:
        """Change the link for packets that enter from now on; planned outages stay those of the start."""

    @abstractmethod
    async def run(
        self, argv: Sequence[str], upstreams: Sequence[Address] = (), environments: Sequence[Mapping[str, str]] = ({},)
    ) -> list[int]:
        """Run a command behind the link, once for each environment; return the exit statuses."""
