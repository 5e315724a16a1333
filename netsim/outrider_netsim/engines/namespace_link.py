"""The base of engines that put a link between two namespaces: where clients connect, and commands behind the link."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from outrider_netsim.core.addresses import Address, check_port
from outrider_netsim.core.async_resource import AsyncResource
from outrider_netsim.core.engine_names import DEFAULT_CONGESTION
from outrider_netsim.namespaces.namespace_bridge import NamespaceBridge
from outrider_netsim.namespaces.namespaces import Namespaces


class NamespaceLink(AsyncResource):
    """Owns the namespaces and the splices into them, which open once the engine's own link is up."""

    def __init__(self, upstream: Address, listen: Address, congestion: str = DEFAULT_CONGESTION) -> None:
        check_port("upstream port", upstream.port)
        check_port("port", listen.port, least=0)
        self._upstream = upstream
        self._listen = listen
        self._address: Address | None = None
        self._bridge = NamespaceBridge(Namespaces(), congestion)

    async def start(self) -> None:
        """Start the link. Raises EngineError, or OSError when it cannot listen; nothing is left behind then."""
        try:
            await self._bridge.start()
            await self._make_link()
            self._address = await self._bridge.listen_outside(self._upstream, *self._listen)
        except BaseException:
            await self.aclose()
            raise

    @property
    def address(self) -> str:
        """HOST:PORT for clients in this process's own namespace."""
        if self._address is None:
            raise RuntimeError("the link is not started: use `async with`")
        return str(self._address)

    @property
    def namespaces(self) -> Namespaces:
        return self._bridge.namespaces

    async def run(
        self, argv: Sequence[str], upstreams: Sequence[Address] = (), environments: Sequence[Mapping[str, str]] = ({},)
    ) -> list[int]:
        """Run a command behind the link, once for each environment, and return the exit statuses."""
        return await self._bridge.run(argv, upstreams or [self._upstream], environments)

    @abstractmethod
    async def _make_link(self) -> None:
        """Connect 10.77.0.1 in A and 10.77.0.2 in B. Raises EngineError."""
