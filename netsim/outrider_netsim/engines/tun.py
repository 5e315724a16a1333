"""The tun engine: a user-space link under real TCP. Needs TUN devices and namespaces, but no netem and no root.

    client -> 10.77.0.1, A's TUN device -- two Paths in a pump process -- B's TUN device, 10.77.0.2 -> server

Packets are real: the kernel's own TCP reacts to their loss and reordering, as with netem.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Coroutine
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from outrider_netsim.core.engine_names import Way
from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.namespace_link import NamespaceLink
from outrider_netsim.engines.packet_pump import PumpRequest, ended_error
from outrider_netsim.impairments.path import LinkStats, check_aqm
from outrider_netsim.namespaces.command import process_ended, readable
from outrider_netsim.namespaces.namespaces import ended, start_module
from outrider_netsim.profiles.profile import Profile

ANSWER_TIMEOUT_S = 30.0


class TunLink(NamespaceLink):
    """A link whose packets pass through two Paths in a process of their own."""

    engine = "tun"

    def __init__(self, plan: LinkPlan) -> None:
        super().__init__(plan)
        self._pump: subprocess.Popen[bytes] | None = None
        self._channel: Connection | None = None

    async def aclose(self) -> None:
        """Reset all connections, end the command, the pump and the namespaces; safe to call twice."""
        try:
            await self._close_splices()
        finally:
            await self._end_pump()
            await self.namespaces.aclose()

    def set_cut(self, ways: frozenset[Way]) -> None:
        self._send(ways)
        self._ignore_clients(bool(ways))
        self.cut_ways = ways

    def set(self, profile: Profile) -> None:
        _check(profile)
        self._send(profile)
        self.profile = profile

    @property
    def stats(self) -> LinkStats:
        """Counters of both directions, and connections. Asks the pump, which takes less than a millisecond."""
        channel = self._send("stats")
        if not channel.poll(ANSWER_TIMEOUT_S):
            raise EngineError(f"the packet pump did not answer within {ANSWER_TIMEOUT_S:g} s: start the link again")
        up, down = self._received()
        return LinkStats(up, down, self._connections)

    def watches(self) -> list[Coroutine[None, None, None]]:
        return [*super().watches(), self._watch_pump()]

    async def _watch_pump(self) -> None:
        assert self._pump is not None
        await process_ended(self._pump)
        self._received()

    def _received(self) -> Any:  # Any: what the pump sends
        """Return the pump's next answer. Raises EngineError with the reason where it has ended."""
        assert self._channel is not None
        assert self._pump is not None
        try:
            answer = self._channel.recv()
        except (EOFError, ConnectionResetError):
            status = self._pump.wait()
            raise ended_error(f"signal {-status}" if status < 0 else f"exit status {status}") from None
        if isinstance(answer, EngineError):
            raise answer
        return answer

    async def _make_link(self) -> None:
        _check(self.profile)
        with contextlib.ExitStack() as ours:
            devices = []
            for side in ("A", "B"):
                devices.append(await self.namespaces.tun(side))
                ours.callback(os.close, devices[-1])
            self._channel, theirs = Pipe()
            # Our copies of the pump's descriptors must go, or neither side would notice the other's end.
            ours.enter_context(theirs)
            self._pump = start_module("outrider_netsim.engines.packet_pump", theirs.fileno(), *devices)
        self._channel.send(self.plan)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await readable(self._channel.fileno())
        except TimeoutError:
            raise EngineError(f"the packet pump did not start within {ANSWER_TIMEOUT_S:g} s: try again") from None
        self._received()

    async def _end_pump(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._pump is not None:
            pump, self._pump = self._pump, None
            # It ends by itself, as its channel is closed, and writes the rest of a recording first.
            if pump.returncode is None:
                await ended(pump)

    def _send(self, request: PumpRequest) -> Connection:
        if self._channel is None:
            raise RuntimeError("the link is not started: use `async with`")
        try:
            self._channel.send(request)
        except (BrokenPipeError, ConnectionResetError):
            self._received()
        return self._channel


def _check(profile: Profile) -> None:
    # Here, because the pump could only end.
    check_aqm(profile.up)
    check_aqm(profile.down)
