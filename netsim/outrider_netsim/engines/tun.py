"""The tun engine: a user-space link under real TCP. Needs TUN devices and namespaces, but no netem and no root.

    client -> 10.77.0.1, A's TUN device -- two Paths in a pump process -- B's TUN device, 10.77.0.2 -> server

Packets are real: the kernel's own TCP reacts to their loss and reordering, as with netem.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.namespace_link import NamespaceLink
from outrider_netsim.engines.packet_pump import PumpRequest
from outrider_netsim.impairments.path import LinkStats, check_aqm
from outrider_netsim.namespaces.namespaces import ended, readable, start_module
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

    def cut(self) -> None:
        self._send("cut")
        self._ignore_clients(True)
        self.is_cut = True

    def restore(self) -> None:
        self._send("restore")
        self._ignore_clients(False)
        self.is_cut = False

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
        with _pump_expected():
            up, down = channel.recv()
        return LinkStats(up, down, self._connections)

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
        with _pump_expected():
            self._channel.recv()

    async def _end_pump(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._pump is not None:
            pump, self._pump = self._pump, None
            # It ends by itself, as its channel is closed, and writes the rest of a recording first.
            await ended(pump)

    def _send(self, request: PumpRequest) -> Connection:
        if self._channel is None:
            raise RuntimeError("the link is not started: use `async with`")
        with _pump_expected():
            self._channel.send(request)
        return self._channel


def _check(profile: Profile) -> None:
    # Here, because the pump could only end.
    check_aqm(profile.up)
    check_aqm(profile.down)


@contextlib.contextmanager
def _pump_expected() -> Iterator[None]:
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise EngineError("the packet pump has ended: start the link again") from None
