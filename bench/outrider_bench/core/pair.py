"""A target and drafters in one process: the real verifier, the client's own loop, no network between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider_client.async_client import AsyncClient
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.load import load_taps
from outrider_server.engine.target import Target
from outrider_server.sessions.verifier import Verifier

COLD = LimitsConfig(shared_prefixes="none")  # no session finds what another one has prefilled


def stop_and_wait_config(**fields: Any) -> ClientConfig:  # Any: each field has its own type, which ClientConfig checks
    """Return the configuration that acceptance is measured with.

    Stop and wait, and every draft with all features. Raises UsageError.
    """
    return ClientConfig(mode="stop-and-wait", wait_for_features=True, opening=False, **fields)


@dataclass(frozen=True, slots=True)
class InProcessPair:
    """A target being served, and the client's side of one drafter."""

    target: Target
    verifier: Verifier
    models: LocalModels
    config: ClientConfig

    def transport(self) -> LocalTransport:
        return LocalTransport(self.verifier.describe, self.verifier.session)

    def client(self) -> AsyncClient:
        """Return a client with a session of its own; use it as `async with`."""
        return AsyncClient(self.config, models=self.models, transport=self.transport())


@asynccontextmanager
async def in_process(
    target_dir: Path, config: ClientConfig, target: Target | None = None, limits: LimitsConfig | None = None
) -> AsyncIterator[InProcessPair]:
    """Serve `target_dir`, or the loaded `target`, to the drafter named by `config`. Raises UsageError."""
    with ThreadPoolExecutor(1) as thread:  # it ends: OpenMP's team for it would slow down the engine's
        models = thread.submit(LocalModels.load, config).result()
        loaded = target or thread.submit(Target.load, str(target_dir)).result()
    drafters = [drafter for drafter in config.drafters if drafter is not None]
    verifier = Verifier(loaded, load_taps(loaded, target_dir, drafters), limits)
    await verifier.start()
    try:
        yield InProcessPair(loaded, verifier, models, config)
    finally:
        await verifier.stop()
