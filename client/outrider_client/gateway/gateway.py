"""What all requests of a gateway share, from the models to the link; knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider_client.async_client import AsyncClient
from outrider_client.connection.grpc_transport import GrpcTransport
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.gateway.errors import ApiError, unknown_model
from outrider_client.gateway.link_watch import LinkWatch
from outrider_client.gateway.metrics import GatewayMetrics
from outrider_client.gateway.request_mapping import GenerationRequest
from outrider_client.gateway.session_pool import SessionPool
from outrider_client.models.local_models import LocalModels
from outrider_proto.errors import UsageError

_UNKNOWN = float("nan")


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Raises UsageError. `names` are those of the model, the first its own; `max_tokens` None is what there is room
    for, where a request does not say."""

    names: tuple[str, ...] = ("outrider",)
    sessions: int = 4
    queue: int = 16
    max_tokens: int | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.sessions < 1:
            raise UsageError(f"sessions={self.sessions}: need at least 1")
        if self.queue < 0:
            raise UsageError(f"queue={self.queue}: need 0 or more")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens={self.max_tokens}: need at least 1")
        if not self.names or not all(self.names):
            raise UsageError("names: need at least one name of the model")
        if self.api_key is not None and not self.api_key.strip():
            raise UsageError("api-key is empty: give some text")


class Gateway:
    """`models` are shared by all sessions, by the name of their drafter, the usual one first. Start it in the event
    loop that it serves."""

    def __init__(
        self,
        client: ClientConfig,
        models: Mapping[str, LocalModels],
        config: GatewayConfig,
        say: Callable[[LinkState], None] = lambda state: None,
    ) -> None:
        self.config = config
        self.client = replace(client, offline_start=True)
        self.metrics = GatewayMetrics()
        self._models = dict(models)
        self._tasks: set[asyncio.Task[None]] = set()
        self._usual = next(iter(models))
        self._say = say
        transport = GrpcTransport(client.server, client.access)
        self.pool = SessionPool(self._new_client, config.sessions, config.queue)
        self.watch = LinkWatch(self.pool, transport, self._tell)
        self.metrics.link(self.watch.state)
        self.metrics.watch("num_requests_running", lambda: self.pool.num_running)
        self.metrics.watch("num_requests_waiting", lambda: self.pool.num_waiting)
        self.metrics.watch("link_rtt_seconds", lambda: self.watch.report.rtt_s or _UNKNOWN)

    def own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:  # Any: what asyncio calls it
        """A task that outlives its request if need be, and ends before the gateway does."""
        task = asyncio.create_task(work, name="outrider answer to an app")
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Looks for the server, and ends all sessions in the end."""
        watching = asyncio.create_task(self.watch.run(), name="outrider link watch")
        try:
            yield
        finally:
            for task in (watching, *self._tasks):
                task.cancel()
            await asyncio.gather(watching, *self._tasks, return_exceptions=True)
            await self.pool.close()

    def models_for(self, asked: GenerationRequest) -> tuple[str, LocalModels]:
        """The drafter's name, and the models with it. Raises ApiError for a model or a drafter that is not here."""
        if asked.model not in self.config.names:
            raise unknown_model(asked.model, self.config.names)
        drafter = self._usual if asked.drafter is None else asked.drafter
        if drafter not in self._models:
            message = f"outrider.drafter: {drafter!r} is not here: there is {', '.join(self._models)}"
            raise ApiError(400, message, param="outrider.drafter")
        return drafter, self._models[drafter]

    def _tell(self, state: LinkState) -> None:
        self.metrics.link(state)
        self._say(state)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to the app, if it is still there

    def _new_client(self, drafter: str) -> AsyncClient:
        return AsyncClient(self.client, models=self._models[drafter])


def drafters(models: LocalModels, names: Sequence[str]) -> dict[str, LocalModels]:
    """What requests may name: the heads that were loaded, and none."""
    bare = {NO_DRAFTER: replace(models, drafter=None, keywords=None)}
    return bare if models.drafter is None else {"+".join(names): models} | bare
