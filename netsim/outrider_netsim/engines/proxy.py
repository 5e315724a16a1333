"""The proxy engine: a TCP relay over a modeled link. No privileges, any OS.

It is the virtual engine in real time: each connection through it is a modeled one (tcp/), whose packets take the same
paths as in the other engines and get lost, overtaken and dropped there.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress

from outrider_netsim.core.addresses import ADDRESS_VARIABLE, Address
from outrider_netsim.core.answers import AnswerReader
from outrider_netsim.core.async_resource import close_server
from outrider_netsim.core.engine_names import Way
from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_netsim.core.small_buffers import hold_back
from outrider_netsim.engines.engine_link import EngineLink, LinkPlan
from outrider_netsim.engines.link_clock import LinkClock
from outrider_netsim.engines.relay import RelayEnd, relay
from outrider_netsim.impairments.path import LinkStats
from outrider_netsim.namespaces.blackhole import ignore_connections
from outrider_netsim.namespaces.command import run_copies
from outrider_netsim.profiles.outages import OutageSwitch, run_outages
from outrider_netsim.profiles.profile import Profile
from outrider_netsim.recording.recorder import FileRecorder
from outrider_netsim.virtual.link import VirtualLink
from outrider_proto.terminal.text import print_line

BACKLOG = 128


class ProxyLink(EngineLink):
    """A link whose connections are modeled ones, between two real ones on this machine.

    Raises EngineError for a capture, which needs packets, and a congestion control that is not modeled.
    """

    engine = "proxy"

    def __init__(self, plan: LinkPlan) -> None:
        if plan.recording.pcap:
            raise EngineError("a relay has no packets to capture: use --engine tun, or --packet-log for their times")
        super().__init__(plan)
        self._clock = LinkClock()
        self._link = VirtualLink(plan.profile, plan.seed, self._clock, congestion=plan.congestion)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._there: dict[asyncio.Task[None], RelayEnd] = {}  # at the servers
        self._out_ways: frozenset[Way] = frozenset()
        self._recorder: FileRecorder | None = None

    async def start(self) -> None:
        """Listen for clients. Raises OSError when it cannot."""
        if self.plan.recording:
            comment = f"{self.profile.name}, seed {self.plan.seed}, engine proxy"
            self._recorder = FileRecorder(self.plan.recording, self._clock.now, comment)
            self._link.record_with(self._recorder)
        self._server = await asyncio.start_server(self._accept, *self.plan.listen, backlog=BACKLOG)
        for listener in self._server.sockets:
            hold_back(listener)
        self._clock.start()
        if outages := [outage for outage in self.profile.outages if not outage.hold]:
            self._own(asyncio.get_running_loop().create_task(run_outages(OutageSwitch(self._hang), outages)))

    async def aclose(self) -> None:
        """Stop listening and drop everything under way; safe to call twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        await close_server(server, self._tasks)
        await server.wait_closed()
        self._clock.stop()
        for message in self._recorder.close() if self._recorder else ():
            print_line(f"outrider-netsim: {message}", err=True)

    def watches(self) -> list[Coroutine[None, None, None]]:
        return [self._clock.watch()]

    @property
    def address(self) -> str:
        return str(Address(*self._listener.getsockname()[:2]))

    @property
    def is_sending(self) -> bool:
        return not all(end.is_passed_on for end in self._there.values())

    @property
    def stats(self) -> LinkStats:
        """Counters of the modeled packets, with the headers they would have had."""
        return self._link.stats

    def set_cut(self, ways: frozenset[Way]) -> None:
        """Lose packets these ways, so that connections stall.

        New connections hang unanswered on Linux; elsewhere the kernel accepts them and they stall.
        """
        self._switch(ways, self._out_ways)
        with self._clock.present():
            self._link.restore()
            self._link.cut(tuple(ways))

    def set(self, profile: Profile) -> None:
        self.profile = profile
        with self._clock.present():
            self._link.set(profile)

    async def run(
        self, argv: Sequence[str], upstreams: Sequence[Address] = (), environments: Sequence[Mapping[str, str]] = ({},)
    ) -> list[int]:
        """Run a command that connects to OUTRIDER_LINK_ADDRESS, once for each environment; return the exit statuses.

        Raises ProfileError for any upstream but the relay's, OSError when the command cannot be executed.
        """
        if tuple(upstreams or [self.plan.upstream]) != (self.plan.upstream,):
            raise ProfileError(f"{len(upstreams)} upstreams: a relay has one server behind it; use --engine tun")
        return await run_copies(argv, [{ADDRESS_VARIABLE: self.address, **env} for env in environments])

    def _hang(self, out: frozenset[Way]) -> None:
        """Let new connections hang during planned outages, in which the link itself loses packets."""
        self._switch(self.cut_ways, out)

    def _switch(self, cut: frozenset[Way], out: frozenset[Way]) -> None:
        ignore_connections(self._listener, ignored=bool(cut or out))
        self.cut_ways, self._out_ways = cut, out

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        there = RelayEnd(AnswerReader(self.answer_begun))
        task = asyncio.get_running_loop().create_task(
            relay((reader, writer), there, self.plan.upstream, self._link, self._clock)
        )
        self._own(task)
        self._there[task] = there
        task.add_done_callback(self._there.pop)
        # Not in relay() alone: a task cancelled before its first step never runs its `finally`.
        task.add_done_callback(lambda _: _abort(writer))

    def _own(self, task: asyncio.Task[None]) -> None:
        # asyncio holds only weak references to tasks: without this one it could vanish half done.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def _listener(self) -> socket.socket:
        if self._server is None:
            raise RuntimeError("the link is not started: use `async with`")
        return self._server.sockets[0]


def _abort(writer: StreamWriter) -> None:
    # asyncio's own, of a transport that was closed with bytes left to send and has sent them.
    with suppress(AttributeError):
        writer.transport.abort()
