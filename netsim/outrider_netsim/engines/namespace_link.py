"""The base of engines that put a link between two namespaces: where clients connect, and commands behind the link."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from outrider_netsim.core.addresses import Address
from outrider_netsim.engines.engine_link import EngineLink, LinkPlan
from outrider_netsim.namespaces.namespace_bridge import NamespaceBridge
from outrider_netsim.namespaces.namespaces import Namespaces


class NamespaceLink(EngineLink):
    """Owns the namespaces and the splices into them, which open once the engine's own link is up."""

    def __init__(self, plan: LinkPlan) -> None:
        super().__init__(plan)
        self._address: Address | None = None
        self._bridge = NamespaceBridge(Namespaces(), plan.congestion)

    async def start(self) -> None:
        try:
            await self._bridge.start()
            await self._make_link()
            self._address = await self._bridge.listen_outside(self.plan.upstream, *self.plan.listen)
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
        return self._bridge.namespaces

    async def run(
        self, argv: Sequence[str], upstreams: Sequence[Address] = (), environments: Sequence[Mapping[str, str]] = ({},)
    ) -> list[int]:
        return await self._bridge.run(argv, upstreams or [self.plan.upstream], environments)

    @abstractmethod
    async def _make_link(self) -> None:
        """Connect 10.77.0.1 in A and 10.77.0.2 in B. Raises EngineError."""
