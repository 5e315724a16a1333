"""The base of engines that put a link between two namespaces, and lead TCP connections and commands through them.

here                        A                            B                             here
client -> host:port     ->  10.77.0.1  ==== link ====  10.77.0.2:any port  ->  upstream     the link's address
          command in A  ->  127.0.0.1:upstream's port   (the same)                           `run`
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial

from outrider_netsim.core.addresses import ADDRESS_VARIABLE, Address
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.engines.engine_link import EngineLink, LinkPlan
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES
from outrider_netsim.namespaces.namespaces import Namespaces
from outrider_netsim.namespaces.tcp_splice import SpliceLeg, TcpSplice, dial_locally, dial_with, local_listener

LOOPBACK = "127.0.0.1"


class NamespaceLink(EngineLink):
    """Owns the namespaces and the splices into them, which open once the engine's own link is up."""

    def __init__(self, plan: LinkPlan) -> None:
        super().__init__(plan)
        self._address: Address | None = None
        self._namespaces = Namespaces()
        self._near: list[TcpSplice] = []  # that accept clients
        self._far: dict[Address, TcpSplice] = {}  # in B, by upstream
        self._inside: dict[int, Address] = {}  # upstreams reachable on A's loopback, by port
        self._ignores_clients = False

    async def start(self) -> None:
        try:
            await self._namespaces.start()
            for side in LINK_ADDRESSES:
                function = "outrider_netsim.namespaces.interfaces:set_up_tcp"
                await self._namespaces.call(side, function, congestion=self.plan.congestion)
            await self._make_link()
            listener = local_listener(*self.plan.listen)
            self._address = Address(*listener.getsockname()[:2])
            await self._open_near(TcpSplice(listener, partial(self._cross, self.plan.upstream)))
        except BaseException:
            await self.aclose()
            raise

    @property
    def address(self) -> str:
        if self._address is None:
            raise RuntimeError("the link is not started: use `async with`")
        return str(self._address)

    @property
    def namespaces(self) -> Namespaces:
        return self._namespaces

    async def run(
        self, argv: Sequence[str], upstreams: Sequence[Address] = (), environments: Sequence[Mapping[str, str]] = ({},)
    ) -> list[int]:
        """Run a command in A, where 127.0.0.1:PORT of each upstream leads over the link, once for each environment.

        Returns the exit statuses. OUTRIDER_LINK_ADDRESS holds the first upstream's address. Raises OSError when the
        command cannot be executed, ProfileError when two upstreams have the same port.
        """
        inside = [await self._listen_inside(upstream) for upstream in upstreams or [self.plan.upstream]]
        variables = {ADDRESS_VARIABLE: str(inside[0])}
        return await self._namespaces.run_copies(argv, [{**variables, **env} for env in environments])

    @abstractmethod
    async def _make_link(self) -> None:
        """Connect 10.77.0.1 in A and 10.77.0.2 in B. Raises EngineError."""

    @property
    def _connections(self) -> int:
        """Number of connections that clients opened."""
        return sum(splice.connections for splice in self._near)

    def _ignore_clients(self, is_cut: bool) -> None:
        """Let new connections hang, or no more; the link itself stalls those under way."""
        self._ignores_clients = is_cut
        for splice in self._near:
            splice.ignore_connections() if is_cut else splice.accept_connections()

    async def _close_splices(self) -> None:
        """Reset all connections; the namespaces stay. Safe to call twice."""
        for splice in (*self._near, *self._far.values()):
            await splice.aclose()

    async def _listen_inside(self, upstream: Address) -> Address:
        """Listen on A's loopback at the upstream's own port, so that commands there need no new address."""
        address = Address(LOOPBACK, upstream.port)
        there = self._inside.get(upstream.port)
        if there is None:
            listener = await self._namespaces.listener("A", *address)
            await self._open_near(TcpSplice(listener, partial(self._cross, upstream)))
            self._inside[upstream.port] = upstream
        elif there != upstream:
            raise ProfileError(
                f"upstream {upstream}: port {upstream.port} already leads to {there}, and a command behind the link "
                "tells servers apart by their ports: give one of them another port"
            )
        return address

    async def _open_near(self, splice: TcpSplice) -> None:
        await splice.start()
        self._near.append(splice)
        if self._ignores_clients:
            splice.ignore_connections()

    async def _cross(self, upstream: Address) -> SpliceLeg:
        far = self._far.get(upstream) or await self._open_far(upstream)
        near = await self._namespaces.socket("A", congestion=self.plan.congestion)
        return await dial_with(near, LINK_ADDRESSES["B"], far.port)

    async def _open_far(self, upstream: Address) -> TcpSplice:
        listener = await self._namespaces.listener("B", LINK_ADDRESSES["B"], congestion=self.plan.congestion)
        splice = TcpSplice(listener, partial(dial_locally, *upstream))
        # Another connection may have opened the same splice during the await.
        if known := self._far.get(upstream):
            await splice.aclose()
            return known
        self._far[upstream] = splice
        await splice.start()
        return splice
