"""The proxy engine: a TCP relay that gives connections the profile's delay, jitter and rate. No privileges, any OS.

What a TCP relay cannot model: loss and reordering of packets, and what congestion control makes of them. A loss would
become a stall; this engine leaves it out, and says so.
"""

from __future__ import annotations

import asyncio
import random
import socket
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from outrider_netsim.blackhole import accept_connections, ignore_connections
from outrider_netsim.clock import LinkClock
from outrider_netsim.profile import Profile, ProfileError
from outrider_netsim.relay import Lane, LaneStats, relay
from outrider_netsim.shaping import Shaper

BACKLOG = 128


@dataclass(slots=True)
class LinkStats:
    """What came through the link so far; `connections` counts those that the client opened."""

    up: LaneStats = field(default_factory=LaneStats)
    down: LaneStats = field(default_factory=LaneStats)
    connections: int = 0


class ProxyLink:
    """A link in front of the server at `upstream_host:upstream_port`; clients connect to `address` instead.

        async with ProxyLink("127.0.0.1", 7401, profile_named("paper-5g"), seed=1) as link:
            ...                     # connect to link.address
            link.cut()              # nothing passes; connections stall, new ones hang
            link.restore()          # all that waited goes on its way

    The seed fixes the jitter drawn for the n-th packet of each direction. Which bytes that packet carries is up to the
    timing of the real programs at both ends.
    """

    def __init__(
        self,
        upstream_host: str,
        upstream_port: int,
        profile: Profile,
        seed: int = 0,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        for name, number, least in (("upstream_port", upstream_port, 1), ("port", port, 0)):
            if not least <= number <= 65535:
                raise ProfileError(f"{name}={number}: need {least} to 65535")
        self.profile = profile
        self.stats = LinkStats()
        self._upstream = upstream_host, upstream_port
        self._listen_at = host, port
        self._up = Lane(Shaper(profile.up, random.Random(f"{seed}/up")), self.stats.up)
        self._down = Lane(Shaper(profile.down, random.Random(f"{seed}/down")), self.stats.down)
        self._clock: LinkClock | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        self._clock = LinkClock()
        self._server = await asyncio.start_server(self._accept, *self._listen_at, backlog=BACKLOG)

    async def aclose(self) -> None:
        """Stop listening and drop what is under way; safe to call twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def is_cut(self) -> bool:
        return not self._running_clock.running

    def cut(self) -> None:
        """The radio is gone: nothing passes either way. Connections stall with their bytes held back; on Linux new ones
        hang unanswered, elsewhere the kernel accepts them and they stall too."""
        self._running_clock.stop()
        ignore_connections(self._listener)

    def restore(self) -> None:
        """The radio is back: what was held back goes on its way, with the delay it still had to go."""
        accept_connections(self._listener)
        self._running_clock.resume()

    def set(self, profile: Profile) -> None:
        """Change the link for all that enters it from now on; nothing overtakes what is under way."""
        self.profile = profile
        self._up.shaper.direction = profile.up
        self._down.shaper.direction = profile.down

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.stats.connections += 1
        task = asyncio.get_running_loop().create_task(
            relay((reader, writer), self._upstream, self._up, self._down, self._running_clock)
        )
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # also when it was cancelled before it ran

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
