"""Lead TCP connections through two namespaces, whatever links them; shared by the kernel and tun engines.

here                        A                            B                             here
client -> host:port     ->  10.77.0.1  ==== link ====  10.77.0.2:any port  ->  upstream     `listen_outside`
          command in A  ->  127.0.0.1:upstream's port   (the same)                           `run`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from outrider_netsim.core.addresses import ADDRESS_VARIABLE, Address
from outrider_netsim.core.engine_names import DEFAULT_CONGESTION
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES
from outrider_netsim.namespaces.namespaces import Namespaces
from outrider_netsim.namespaces.tcp_splice import (
    SpliceLeg,
    TcpSplice,
    dial_locally,
    dial_with,
    local_listener,
)

LOOPBACK = "127.0.0.1"


class NamespaceBridge:
    """Owns the namespaces and the splices into them. The engine links 10.77.0.1 and 10.77.0.2.

    The splices' connections over the link have the congestion control `congestion`.
    """

    def __init__(self, namespaces: Namespaces, congestion: str = DEFAULT_CONGESTION) -> None:
        self.namespaces = namespaces
        self._congestion = congestion
        self._near: list[TcpSplice] = []  # that accept clients
        self._far: dict[Address, TcpSplice] = {}  # in B, by upstream
        self._inside: dict[int, Address] = {}  # upstreams reachable on A's loopback, by port
        self._is_cut = False

    @property
    def connections(self) -> int:
        """Number of connections that clients opened."""
        return sum(splice.connections for splice in self._near)

    async def start(self) -> None:
        """Create the namespaces. Raises EngineError."""
        await self.namespaces.start()
        for side in LINK_ADDRESSES:
            await self.namespaces.call(
                side, "outrider_netsim.namespaces.interfaces:set_up_tcp", congestion=self._congestion
            )

    async def listen_outside(self, upstream: Address, host: str = LOOPBACK, port: int = 0) -> Address:
        """Listen in this process's own namespace for connections to `upstream`. Raises OSError."""
        listener = local_listener(host, port)
        address = Address(*listener.getsockname()[:2])
        await self._open_near(TcpSplice(listener, partial(self._cross, upstream)))
        return address

    async def listen_inside(self, upstream: Address) -> Address:
        """Listen on A's loopback at the upstream's own port, so that commands there need no new address.

        Raises ProfileError when another upstream has that port.
        """
        address = Address(LOOPBACK, upstream.port)
        there = self._inside.get(upstream.port)
        if there is None:
            listener = await self.namespaces.listener("A", *address)
            await self._open_near(TcpSplice(listener, partial(self._cross, upstream)))
            self._inside[upstream.port] = upstream
        elif there != upstream:
            raise ProfileError(
                f"upstream {upstream}: port {upstream.port} already leads to {there}, and a command behind the link "
                "tells servers apart by their ports: give one of them another port"
            )
        return address

    async def run(
        self, argv: Sequence[str], upstreams: Sequence[Address], environments: Sequence[Mapping[str, str]]
    ) -> list[int]:
        """Run a command in A, where 127.0.0.1:PORT of each upstream leads over the link, once for each environment.

        Returns the exit statuses. OUTRIDER_LINK_ADDRESS holds the first upstream's address. Raises OSError when the
        command cannot be executed, ProfileError when two upstreams have the same port.
        """
        inside = [await self.listen_inside(upstream) for upstream in upstreams]
        variables = {ADDRESS_VARIABLE: str(inside[0])} if inside else {}
        return await self.namespaces.run_copies(argv, [{**variables, **env} for env in environments])

    def cut(self) -> None:
        """Let new connections hang; the link itself stalls those under way."""
        self._is_cut = True
        for splice in self._near:
            splice.ignore_connections()

    def restore(self) -> None:
        self._is_cut = False
        for splice in self._near:
            splice.accept_connections()

    async def aclose(self) -> None:
        """Reset all connections; the namespaces stay. Safe to call twice."""
        for splice in (*self._near, *self._far.values()):
            await splice.aclose()

    async def _open_near(self, splice: TcpSplice) -> None:
        await splice.start()
        self._near.append(splice)
        if self._is_cut:
            splice.ignore_connections()

    async def _cross(self, upstream: Address) -> SpliceLeg:
        far = self._far.get(upstream) or await self._open_far(upstream)
        near = await self.namespaces.socket("A", congestion=self._congestion)
        return await dial_with(near, LINK_ADDRESSES["B"], far.port)

    async def _open_far(self, upstream: Address) -> TcpSplice:
        listener = await self.namespaces.listener("B", LINK_ADDRESSES["B"], congestion=self._congestion)
        splice = TcpSplice(listener, partial(dial_locally, *upstream))
        # Another connection may have opened the same splice during the await.
        if known := self._far.get(upstream):
            await splice.aclose()
            return known
        self._far[upstream] = splice
        await splice.start()
        return splice
