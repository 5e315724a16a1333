"""A drafter, or several heads in step, in a thread of its own, so that drafting never holds up the heartbeats.

Every job brings the state up to date first: it is rolled back to what it shares with the tokens given, takes in the
rest, and then the feature rows that have arrived. So callers only ever say what the tokens are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from outrider_client.choice import choose_token
from outrider_client.transcript import common_length
from outrider_client.worker import Worker
from outrider_drafters.drafter import Drafter
from outrider_drafters.routing.heads import Heads, Routed
from outrider_drafters.trees.shape import TreePlan
from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import Sampling

T = TypeVar("T")
_Rows = tuple[int, NDArray[np.float32]]


class DraftingThread:
    """Used from one event loop; the state itself is touched in the thread only."""

    def __init__(self, drafter: Drafter, num_cpu_threads: int | None = None) -> None:
        heads = Heads.of(drafter)
        self.tap = heads.tap
        self.names = heads.names
        self._state = heads.new_state()
        self._tokens: list[int] = []  # what the state holds
        self._arrived: list[_Rows] = []
        self._num_features = 0
        limit = (lambda: None) if num_cpu_threads is None else partial(torch.set_num_threads, num_cpu_threads)
        self._worker = Worker("outrider-draft", limit)

    @property
    def num_features(self) -> int:
        """Positions 0 .. num_features - 1 need not be sent again."""
        return self._num_features

    def begin(self, common: int) -> None:
        """Another answer shares only its first `common` tokens with what was there."""
        self._arrived = [(first, rows[: max(common - first, 0)]) for first, rows in self._arrived]
        self._num_features = min(self._num_features, common)

    def add_features(self, first: int, rows: NDArray[np.float32]) -> None:  # [n, width]
        """Rows for the next job; a gap before them makes them useless. Raises Violation for another width."""
        if rows.shape[1] != self.tap.width:
            raise Violation(Reason.MALFORMED_FEATURES, f"features of width {rows.shape[1]}: need {self.tap.width}")
        if len(rows) and (first <= self._num_features or self.tap.newest_only):
            self._arrived.append((first, rows))
            self._num_features = max(self._num_features, first + len(rows))

    @property
    def current(self) -> int:
        """Number of the head in use."""
        return self._state.current

    async def grow(self, tokens: Sequence[int], plan: TreePlan, head: int | None = None) -> Routed:
        """A draft on `tokens`, whose last one is the root, by the best head or the one given; empty where none can
        tell."""
        return await self._run(tokens, lambda: self._state.draft(plan, head))

    async def write(self, tokens: Sequence[int], sampling: Sampling) -> int | None:
        """The next token of the head in use, or of another where that one cannot go on; None where none can."""
        return await self._run(tokens, lambda: self._write(sampling))

    async def follow(self, tokens: Sequence[int]) -> None:
        """Only bring the state up to date."""
        await self._run(tokens, lambda: None)

    async def close(self) -> None:
        """Safe to call twice."""
        await asyncio.to_thread(self._worker.stop)

    async def _run(self, tokens: Sequence[int], job: Callable[[], T]) -> T:
        arrived, self._arrived = self._arrived, []
        result, held = await self._worker.run(partial(self._job, list(tokens), arrived, job))
        self._num_features = max((held, *(first + len(rows) for first, rows in self._arrived)))
        return result

    def _write(self, sampling: Sampling) -> int | None:
        if not self._state.use_one_that_can():
            return None
        return choose_token(self._state.root_logits(), sampling, len(self._tokens))

    @torch.inference_mode()
    def _job(self, tokens: list[int], arrived: list[_Rows], job: Callable[[], T]) -> tuple[T, int]:
        common = common_length(self._tokens, tokens)
        if common < len(self._tokens):
            self._state.rollback(common)
        self._state.append(tokens[common:])
        self._tokens = tokens
        for first, rows in arrived:
            if len(rows) and (first <= self._state.num_features or self.tap.newest_only):
                self._state.add_features(first, torch.from_numpy(rows))
        return job(), self._state.num_features
