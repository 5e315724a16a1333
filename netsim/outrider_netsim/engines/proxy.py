"""The proxy engine: a TCP relay that gives connections the profile's delays, rate and outages. No privileges, any OS.

Packets here are pieces of 1448 bytes, so what needs real ones is not in it (shaping.py): a loss is a stall and never
slows a transfer down for good, reordering only delays, and the queue never overflows.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from outrider_netsim.core.addresses import ADDRESS_VARIABLE, FREE_PORT, Address, check_port
from outrider_netsim.core.async_resource import AsyncResource
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.engines.link_clock import LinkClock
from outrider_netsim.engines.relay import PayloadStats, RelayLane, relay
from outrider_netsim.engines.shaping import Shaper, timeout_s
from outrider_netsim.impairments.path import LinkStats
from outrider_netsim.namespaces.blackhole import accept_connections, ignore_connections
from outrider_netsim.namespaces.command import run_command
from outrider_netsim.profiles.outages import run_outages
from outrider_netsim.profiles.profile import Profile

BACKLOG = 128

Holder = Literal["hand", "plan"]  # who wants the link cut


class ProxyLink(AsyncResource):
    """A link in front of the server at `upstream`; clients connect to `address` instead.

        async with ProxyLink(profile_named("paper-5g"), Address("127.0.0.1", 7401), seed=1) as link:
            ...                     # connect to link.address
            link.cut()              # nothing passes; connections stall, new ones hang
            link.restore()          # all that waited goes on its way

    The seed fixes delay and loss of the n-th packet of each direction. Which bytes that packet carries is up to the
    timing of the real programs at both ends. The profile's outages count from the start.
    """

    engine: Final = "proxy"

    def __init__(self, profile: Profile, upstream: Address, seed: int = 0, *, listen: Address = FREE_PORT) -> None:
        check_port("upstream port", upstream.port)
        check_port("port", listen.port, least=0)
        self.profile = profile
        self._num_connections = 0
        self._upstream = upstream
        self._listen = listen
        self._up = RelayLane(Shaper(profile.up, f"{seed}/up", timeout_s(profile)), PayloadStats())
        self._down = RelayLane(Shaper(profile.down, f"{seed}/down", timeout_s(profile)), PayloadStats())
        self._clock: LinkClock | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._holding: set[Holder] = set()

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        self._clock = LinkClock()
        self._server = await asyncio.start_server(self._accept, *self._listen, backlog=BACKLOG)
        if self.profile.outages:
            self._own(asyncio.get_running_loop().create_task(run_outages(_OutageSwitch(self), self.profile.outages)))

    async def aclose(self) -> None:
        """Stop listening and drop what is under way; safe to call twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return str(Address(*self._listener.getsockname()[:2]))

    @property
    def stats(self) -> LinkStats:
        """Packets that the relay made of the bytes, with the headers they would have had."""
        return LinkStats(self._up.shaper.path.stats, self._down.shaper.path.stats, self._num_connections)

    @property
    def payload(self) -> tuple[PayloadStats, PayloadStats]:
        """What came out of the link up and down, without headers."""
        return self._up.stats, self._down.stats

    @property
    def is_cut(self) -> bool:
        """Whether it was cut by hand."""
        return "hand" in self._holding

    def cut(self) -> None:
        """The radio is gone: nothing passes either way. Connections stall with their bytes held back; on Linux new ones
        hang unanswered, elsewhere the kernel accepts them and they stall too."""
        self._hold("hand")

    def restore(self) -> None:
        """The radio is back, but for planned outages: what was held back goes on its way, with the delay it still had
        to go."""
        self._release("hand")

    def set(self, profile: Profile) -> None:
        """Change the link for all that enters it from now on; nothing overtakes what is under way. Planned outages stay
        those of the start."""
        now, timeout = self._running_clock.now(), timeout_s(profile)
        self.profile = profile
        self._up.shaper.set(profile.up, timeout, now)
        self._down.shaper.set(profile.down, timeout, now)

    async def run(self, argv: Sequence[str], upstreams: Sequence[Address], env: Mapping[str, str]) -> int:
        """Run a command that connects to OUTRIDER_LINK_ADDRESS; its exit status, 128 + n if signal n ended it.

        Raises ProfileError for another upstream than the relay's, OSError when the command cannot be executed.
        """
        if tuple(upstreams) != (self._upstream,):
            raise ProfileError(f"{len(upstreams)} upstreams: a relay has one server behind it; use --engine tun")
        return await run_command(argv, {ADDRESS_VARIABLE: self.address, **env})

    def _hold(self, holder: Holder) -> None:
        self._running_clock.stop()
        ignore_connections(self._listener)
        self._holding.add(holder)

    def _release(self, holder: Holder) -> None:
        self._holding.discard(holder)
        if not self._holding:
            accept_connections(self._listener)
            self._running_clock.resume()

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._num_connections += 1
        task = asyncio.get_running_loop().create_task(
            relay((reader, writer), self._upstream, self._up, self._down, self._running_clock)
        )
        self._own(task)
        task.add_done_callback(lambda _: writer.transport.abort())  # also when it was cancelled before it ran

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def _listener(self) -> socket.socket:
        if self._server is None:
            raise RuntimeError("the link is not started: use `async with`")
        return self._server.sockets[0]

    @property
    def _running_clock(self) -> LinkClock:
        if self._clock is None:
            raise RuntimeError("the link is not started: use `async with`")
        return self._clock


class _OutageSwitch:
    """The profile's hand on the link."""

    def __init__(self, link: ProxyLink) -> None:
        self._link = link

    def cut(self) -> None:
        self._link._hold("plan")

    def restore(self) -> None:
        self._link._release("plan")
