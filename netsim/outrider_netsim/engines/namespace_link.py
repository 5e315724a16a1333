"""The base of engines that put a link between two namespaces, and lead TCP connections and commands through them.

here                        A                                 B                                   here
                 command ->  127.0.0.1:PORT  == link ==  listener, splice  -> the server of that port   `run`
client -> host:port, splice ->  (the same)                                                            the link's address
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence

from outrider_netsim.core.addresses import ADDRESS_VARIABLE, Address
from outrider_netsim.core.answers import AnswerReader
from outrider_netsim.core.async_resource import cancel_all
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.engines.engine_link import EngineLink, LinkPlan
from outrider_netsim.engines.rtnetlink import NetlinkClient
from outrider_netsim.engines.steering import LOOPBACK, Steering
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES, Side, listening_ports
from outrider_netsim.namespaces.namespaces import Namespaces
from outrider_netsim.namespaces.tcp_splice import SpliceLeg, TcpSplice, dial_locally, dial_with, local_listener

FOLLOW_EVERY_S = 0.5


class NamespaceLink(EngineLink):
    """Owns the namespaces and the splices into them, which open once the engine's own link is up."""

    namespaces: Namespaces

    def __init__(self, plan: LinkPlan) -> None:
        super().__init__(plan)
        self._address: Address | None = None
        self.namespaces = Namespaces()
        self._clients: dict[Side, NetlinkClient] = {}  # one in each
        self._steering: Steering | None = None
        self._near: TcpSplice | None = None  # accepts clients of this network
        self._far: dict[int, TcpSplice] = {}  # in B, by the port that A's loopback has, too
        self._servers: dict[int, Address] = {}  # by the same port
        self._connections = 0  # over the link, that a server has accepted
        self._followed: dict[int, bool] = {}  # ports that nobody asked for; whether they lead over the link

    async def start(self) -> None:
        try:
            await self.namespaces.start()
            for side in LINK_ADDRESSES:
                function = "outrider_netsim.namespaces.interfaces:set_up_tcp"
                await self.namespaces.call(side, function, congestion=self.plan.congestion)
                opened = await self.namespaces.call(side, f"{NetlinkClient.__module__}:open_netlink")
                self._clients[side] = NetlinkClient(socket.socket(fileno=opened))
            await self._make_link()
            self._steering = await Steering.start(
                self.namespaces, self._clients, self.plan.congestion, self._ask_server
            )
            self.stayed = self._steering.stayed
            await self._lead(self._steering, self.plan.upstream)
            listener = local_listener(*self.plan.listen)
            self._address = Address(*listener.getsockname()[:2])
            self._near = TcpSplice(listener, self._cross)
            await self._near.start()
        except BaseException:
            await self.aclose()
            raise

    @property
    def address(self) -> str:
        if self._address is None:
            raise RuntimeError("the link is not started: use `async with`")
        return str(self._address)

    async def run(
        self, argv: Sequence[str], upstreams: Sequence[Address] = (), environments: Sequence[Mapping[str, str]] = ({},)
    ) -> list[int]:
        """Run a command in A, where 127.0.0.1:PORT of each upstream leads over the link, once for each environment.

        So do the ports of all other servers on this machine's loopback, unless the command has one of its own there.
        Returns the exit statuses. OUTRIDER_LINK_ADDRESS holds the first upstream's address. Raises OSError when the
        command cannot be executed, ProfileError when two upstreams have the same port.
        """
        assert self._steering is not None
        servers = upstreams or [self.plan.upstream]
        for server in servers:
            await self._lead(self._steering, server)
        variables = {ADDRESS_VARIABLE: str(Address(LOOPBACK, servers[0].port))}
        async with self._following(self._steering):
            return await self.namespaces.run(argv, [{**variables, **env} for env in environments])

    def watches(self) -> list[Coroutine[None, None, None]]:
        return [self.namespaces.watch()]

    @property
    def is_sending(self) -> bool:
        is_admitted = self._steering is not None and self._steering.has_admitted
        return is_admitted or any(splice.is_sending for splice in self._far.values())

    @abstractmethod
    async def _make_link(self) -> None:
        """Connect 10.77.0.1 in A and 10.77.0.2 in B. Raises EngineError."""

    def _ignore_clients(self, is_cut: bool) -> None:
        """Let new connections to the link's address hang, or no more; the link itself stalls all others."""
        if self._near is not None:
            self._near.ignore_connections(ignored=is_cut)

    async def _close_splices(self) -> None:
        """Reset all connections and close the netlink sockets; the namespaces stay. Safe to call twice."""
        for splice in (self._near, *self._far.values()):
            if splice is not None:
                await splice.aclose()
        if self._steering is not None:
            await self._steering.aclose()
            self._steering = None
        for client in self._clients.values():
            client.close()

    async def _lead(self, steering: Steering, server: Address) -> None:
        """Lead A's loopback at the server's own port to it, so that commands there need no new address."""
        port = server.port
        if port in self._followed:
            # Who asks for it comes before what was found, and before a server of the command's own.
            self._servers[port] = server
            if not self._followed.pop(port):
                steering.lead(port)
        there = self._servers.setdefault(port, server)
        if there != server:
            raise ProfileError(
                f"upstream {server}: port {port} already leads to {there}, and a command behind the link tells servers "
                "apart by their ports: give one of them another port"
            )
        if port not in self._far:
            listener = await self.namespaces.listener("B", LOOPBACK, port, congestion=self.plan.congestion)
            self._far[port] = TcpSplice(
                listener,
                lambda client: steering.leg((client, port)),
                lambda client: steering.forget((client, port)),
            )
            await self._far[port].start()
            steering.lead(port)

    @contextlib.asynccontextmanager
    async def _following(self, steering: Steering) -> AsyncIterator[None]:
        """Lead the ports of this machine's servers over the link, as they come, until the end of the block."""
        await self._follow_ports(steering)
        task = asyncio.create_task(self._keep_following(steering))
        try:
            yield
        finally:
            await cancel_all([task])

    async def _keep_following(self, steering: Steering) -> None:
        while True:
            await asyncio.sleep(FOLLOW_EVERY_S)
            await self._follow_ports(steering)

    async def _follow_ports(self, steering: Steering) -> None:
        function = f"{listening_ports.__module__}:{listening_ports.__name__}"
        inside = {int(port) for port in await self.namespaces.call("A", function)}
        for port, host in listening_ports().items():
            if port not in self._servers and port not in inside and self.address != str(Address(host, port)):
                with contextlib.suppress(OSError):
                    await self._lead(steering, Address(host, port))
                    self._followed[port] = True
        for port, is_led in self._followed.items():
            # A server of the command's own comes first.
            if is_led == (port in inside):
                steering.lead(port, is_led=not is_led)
                self._followed[port] = not is_led

    async def _cross(self, _client: int) -> SpliceLeg:
        near = await self.namespaces.socket("A", congestion=self.plan.congestion)
        return await dial_with(near, LOOPBACK, self.plan.upstream.port)

    async def _ask_server(self, port: int) -> SpliceLeg:
        leg = await dial_locally(*self._servers[port])
        leg.answers = AnswerReader(self.answer_begun)
        self._connections += 1
        return leg
