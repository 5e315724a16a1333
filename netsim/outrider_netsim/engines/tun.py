"""The tun engine: a link in user space under real TCP. Needs TUN devices and namespaces, no sch_netem, no root.

    client -> 10.77.0.1, A's TUN device -- two Paths in a carrier process -- B's TUN device, 10.77.0.2 -> server

Packets are real, so their loss and reordering meet the kernel's own TCP, as with netem.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Final

from outrider_netsim.core.addresses import FREE_PORT, Address
from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.messages import Counted, Cut, Order, Report, Restore, Set, Start
from outrider_netsim.engines.namespace_link import PassageLink
from outrider_netsim.impairments.path import LinkStats
from outrider_netsim.namespaces.namespaces import readable, start_module
from outrider_netsim.profiles.profile import Profile

ANSWER_TIMEOUT_S = 30.0


class TunLink(PassageLink):
    """A link in front of the server at `upstream`, which listens at `listen` in this process's own namespace.

    The seed fixes what befalls the n-th packet of each direction; which packet that is, real time decides.
    """

    engine: Final = "tun"

    def __init__(self, profile: Profile, upstream: Address, seed: int = 0, *, listen: Address = FREE_PORT) -> None:
        super().__init__(upstream, listen)
        self.profile = profile
        self.is_cut = False
        self._seed = seed
        self._carrier: subprocess.Popen[bytes] | None = None
        self._orders: Connection | None = None

    async def aclose(self) -> None:
        """Reset all connections, end the command, the carrier and the namespaces; safe to call twice."""
        try:
            await self._passage.aclose()
        finally:
            self._end_carrier()
            await self.namespaces.aclose()

    def cut(self) -> None:
        """The radio is gone: packets are dropped both ways, and new connections hang."""
        self._order(Cut())
        self._passage.cut()
        self.is_cut = True

    def restore(self) -> None:
        """The radio is back; what TCP still wants to deliver comes with its next retransmission."""
        self._order(Restore())
        self._passage.restore()
        self.is_cut = False

    def set(self, profile: Profile) -> None:
        """Change the link for all that enters it from now on."""
        self._order(Set(profile.up, profile.down))
        self.profile = profile

    @property
    def stats(self) -> LinkStats:
        """Packets of both directions and connections so far. Asks the carrier, which takes part of a millisecond."""
        orders = self._order(Report())
        if not orders.poll(ANSWER_TIMEOUT_S):
            raise EngineError(
                f"the carrier of the packets gave no answer in {ANSWER_TIMEOUT_S:g} s: start the link again"
            )
        with _carrier_expected():
            counted: Counted = orders.recv()
        return LinkStats(counted.up, counted.down, self._passage.connections)

    async def _make_link(self) -> None:
        with contextlib.ExitStack() as ours:
            devices = []
            for side in ("A", "B"):
                devices.append(await self.namespaces.tun(side))
                ours.callback(os.close, devices[-1])
            self._orders, theirs = Pipe()
            ours.enter_context(theirs)
            self._carrier = start_module("outrider_netsim.engines.packet_pump", theirs.fileno(), *devices)
        self._orders.send(Start(self.profile, self._seed))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await readable(self._orders.fileno())
        except TimeoutError:
            raise EngineError(f"the packets' carrier did not start within {ANSWER_TIMEOUT_S:g} s: try again") from None
        with _carrier_expected():
            self._orders.recv()

    def _end_carrier(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if self._carrier is not None:
            self._carrier.kill()
            self._carrier.wait()
            self._carrier = None

    def _order(self, order: Order) -> Connection:
        if self._orders is None:
            raise RuntimeError("the link is not started: use `async with`")
        with _carrier_expected():
            self._orders.send(order)
        return self._orders


@contextlib.contextmanager
def _carrier_expected() -> Iterator[None]:
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise EngineError("the carrier of the packets has ended: start the link again") from None
