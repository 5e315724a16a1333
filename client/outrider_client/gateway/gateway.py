"""Holds what all requests share: models, session pool, link watch and metrics. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from outrider_client.async_client import AsyncClient
from outrider_client.connection.grpc_transport import GrpcProbe, GrpcTransport
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.gateway.errors import ApiError, api_error, unknown_model
from outrider_client.gateway.link_watch import LinkWatch
from outrider_client.gateway.metrics import GatewayMetrics
from outrider_client.gateway.request_mapping import GenerationRequest
from outrider_client.gateway.session_pool import SessionPool
from outrider_client.models.local_models import LocalModels, with_default_models
from outrider_client.text.detokenizer import TokenFragments
from outrider_drafters.checkpoints.bundle import MANIFEST
from outrider_drafters.readers.config import read_json
from outrider_models.core.embedded import EMBEDDED
from outrider_proto.errors import OutriderError
from outrider_proto.frames import TokenRules

DEFAULT_NAME = "outrider"
_UNKNOWN = float("nan")


class Gateway:
    """What all requests share, in the event loop that serves them. `models`: by drafter's name, the default first."""

    def __init__(
        self,
        client: ClientConfig,
        models: Mapping[str, LocalModels],
        config: GatewayConfig,
        on_link_change: Callable[[LinkState], None] = lambda state: None,
        on_mismatch: Callable[[str], None] = lambda mismatch: None,
    ) -> None:
        self.config = config
        self.client = replace(client, offline_start=True)
        self.metrics = GatewayMetrics()
        self._models = dict(models)
        self.target_name = target_name(with_default_models(client).target or EMBEDDED)
        self.names = config.names or tuple(dict.fromkeys((DEFAULT_NAME, self.target_name)))
        # Their own: work for an answer in progress waits for no other request to be read.
        self.readers = ThreadPoolExecutor(2, thread_name_prefix="outrider reads requests")
        self._tasks: set[asyncio.Task[None]] = set()
        self.drafter = next(iter(models))  # where a request names none
        self._on_link_change = on_link_change
        self._on_mismatch = on_mismatch
        self.mismatch: str | None = None  # what the server and the models differ in
        self._transport = GrpcTransport(client.server, client.access)
        self.pool = SessionPool(
            lambda drafter: AsyncClient(self.client, models=self._models[drafter]), config.sessions, config.queue
        )
        self.watch = LinkWatch(self.pool, GrpcProbe(self._transport), self._link_changed)
        self.metrics.set_link_state(self.watch.state)
        add_gauge = self.metrics.add_gauge
        add_gauge("num_requests_running", "Requests being answered.", lambda: self.pool.num_running)
        add_gauge("num_requests_waiting", "Requests waiting for a session.", lambda: self.pool.num_waiting)
        rtt = "Measured round-trip time to the server."
        add_gauge("link_rtt_seconds", rtt, lambda: self.watch.rtt_s or _UNKNOWN)

    @property
    def max_context(self) -> int:
        return self._models[self.drafter].max_context

    @cached_property
    def token_fragments(self) -> TokenFragments:
        """Bytes of the tokens that are pieces of characters. Reads all tokens: not for the event loop."""
        models = self._models[self.drafter]
        return {} if models.load_text is None else models.text.fragments

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:  # Any: as asyncio declares it
        """Run work in a task that may outlive its request, and ends before the gateway does."""
        # The event loop holds tasks only weakly: one that nobody else refers to can vanish in the middle.
        task = asyncio.create_task(work, name="outrider answer to an app")
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the link; at the end stop all tasks and close all sessions."""
        watching = asyncio.create_task(self.watch.run(), name="outrider link watch")
        try:
            yield
        finally:
            # Answers end first, then the sessions that they use.
            for task in (watching, *self._tasks):
                task.cancel()
            await asyncio.gather(watching, *self._tasks, return_exceptions=True)
            await self.pool.close()
            self.readers.shutdown(wait=False, cancel_futures=True)
            if (schemas := self._models[self.drafter].schemas) is not None:
                schemas.compiler.stop()

    def check_model(self, name: str) -> None:
        """Raise ApiError for a name that the model does not have."""
        if name not in self.names and not self.config.any_model:
            raise unknown_model(self.names)

    def models_for(self, request: GenerationRequest) -> tuple[str, LocalModels]:
        """The drafter's name and its models. Raises ApiError for an unknown model or drafter."""
        self.check_model(request.model)
        drafter = self.drafter if request.drafter is None else request.drafter
        if drafter not in self._models:
            message = f"outrider.drafter: there is none of that name: choose one of {', '.join(self._models)}"
            raise ApiError(400, message, param="outrider.drafter")
        return drafter, self._models[drafter]

    async def compile_schema(self, request: GenerationRequest) -> None:
        """Compile the schema of an answer before it is prepared, which tells what is wrong with it."""
        _, models = self.models_for(request)
        with contextlib.suppress(OutriderError):
            await models.compile_schema(TokenRules(json_schema=request.overrides.get("json_schema") or ""))

    def failed(self, error: Exception) -> ApiError:
        """Count an error, and return it as the app gets it."""
        failure = api_error(error)
        self.metrics.refused.labels(str(failure.status)).inc()
        return failure

    def _link_changed(self, state: LinkState) -> None:
        self.metrics.set_link_state(state)
        self._on_link_change(state)
        if state is LinkState.ONLINE:
            self.start_task(self._compare_models())

    async def _compare_models(self) -> None:
        """Ask the server what it hosts, and tell if these models do not fit: every request would be refused."""
        with contextlib.suppress(OutriderError, TimeoutError):
            async with asyncio.timeout(self.client.timeouts.describe_s):
                described = await self._transport.describe()
            mismatch = self._models[self.drafter].mismatch(described)
            if mismatch is not None and mismatch != self.mismatch:
                self._on_mismatch(mismatch)
            self.mismatch = mismatch

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio logs it as never retrieved; the app has got it already


def target_name(target: str | Path) -> str:
    """Return a target's name, as --target takes it; of a directory or file only the last part."""
    named = Path(target).expanduser()
    if (named / MANIFEST).is_file():  # a pulled bundle's directory is named for the server
        named = Path(str(read_json(named / MANIFEST).get("target")))
    elif named.exists():
        named = named.resolve()
    if not named.is_absolute() and len(named.parts) < 3:  # ours or the hub's: smollm2, owner/model
        return named.as_posix()
    return named.stem if named.suffix == ".gguf" else named.name


def models_by_drafter(models: LocalModels, names: Sequence[str]) -> dict[str, LocalModels]:
    """The models for each drafter a request may name: the loaded heads together, and none."""
    bare = {NO_DRAFTER: replace(models, drafter=None, offline_drafter=None, keywords=None)}
    return bare if models.drafter is None else {"+".join(names): models} | bare
