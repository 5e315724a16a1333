"""A target and drafters in one process: the real verifier, the client's own loop, no network between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outrider_bench.core.answer_record import IsWhole
from outrider_client.async_client import AsyncClient
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_proto.frames import Codec, Draft, Features
from outrider_proto.tree import DraftTree
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.load import load_taps
from outrider_server.engine.target import Target
from outrider_server.sessions.verifier import Verifier

Rows = NDArray[np.float32]
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


async def answers_after_cuts(
    pair: InProcessPair,
    prompt: Sequence[int],
    answer: Sequence[int],
    cuts: Sequence[int],
    limit: int,
    is_whole: IsWhole = lambda answer: False,
) -> dict[int, list[int]]:
    """Return what becomes of the target's answer if the link dies for good after so many of its tokens.

    The drafter writes on, until the answer has an end token, is whole, or has `limit` tokens.
    """
    features = await features_of(pair, (*prompt, *answer[: max(cuts)]))
    return {cut: _write_on(pair, prompt, answer[:cut], features, limit, is_whole) for cut in cuts}


@torch.inference_mode()
def _write_on(
    pair: InProcessPair, prompt: Sequence[int], answer: Sequence[int], features: Rows, limit: int, is_whole: IsWhole
) -> list[int]:
    assert pair.models.drafter is not None
    state, written = pair.models.drafter.new_state(), list(answer)
    state.append([*prompt, *answer])
    # Features of the last token do not exist yet when the root is drafted from it.
    state.add_features(0, torch.from_numpy(features[: len(prompt) + len(answer) - 1]))
    ends = pair.target.eos_token_ids
    while state.max_levels and len(written) < limit and written[-1] not in ends and not is_whole(written):
        written.append(int(state.tree_logits(DraftTree())[0].argmax()))
        state.append(written[-1:])
    return written


async def features_of(pair: InProcessPair, tokens: Sequence[int], codec: Codec = "int8") -> Rows:
    """Return the rows [len(tokens), width] that the drafter gets of these tokens."""
    if pair.models.drafter is None or not pair.models.drafter.tap.width:  # none would be waited for without end
        return np.empty((len(tokens), 0), np.float32)
    connection = await pair.transport().connect()
    connection.send(pair.models.open_frame(codec))
    # A draft without nodes runs the whole text, its root included.
    connection.send(Draft(1, 0, tuple(tokens[:-1]), tokens[-1], DraftTree()))
    rows: list[Rows] = []
    while True:
        frame = await connection.receive()
        if isinstance(frame, Features):
            rows.append(frame.rows)
            if frame.last:
                await connection.close()
                return np.concatenate(rows)
