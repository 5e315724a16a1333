"""Ways of answering one prompt, greedily and from nothing: transformers' own, the plain loop, and ours."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from outrider_bench.core.reference_answers import GenerateModel
from outrider_bench.network.timed_answer import ask
from outrider_client.async_client import AsyncClient
from outrider_server.engine.reference_decode import plain_answer
from outrider_server.engine.target import Target


@dataclass(frozen=True, slots=True)
class WayAnswer:
    """New tokens, the tokens of each of the target's passes, and seconds from the prompt's tokens to the end."""

    token_ids: tuple[int, ...]
    tokens_by_pass: tuple[int, ...]
    wall_s: float
    ttft_s: float | None


class Way(Protocol):
    """Answers a prompt with at most `limit` tokens."""

    async def answer(self, prompt: Sequence[int], limit: int) -> WayAnswer: ...


Check = Callable[[], None]
T = TypeVar("T")


async def in_thread(run: Callable[[Check], T]) -> T:
    """Run in a thread; once this task is cancelled, the next check that `run` makes raises, and ends it."""
    is_cancelled = threading.Event()

    def check() -> None:
        if is_cancelled.is_set():
            raise asyncio.CancelledError

    try:
        return await asyncio.to_thread(run, check)
    finally:
        # Cancelling ends the wait alone: the thread would write on, and the program wait for it before it ends.
        is_cancelled.set()


@dataclass(frozen=True, slots=True)
class GenerateWay:
    """transformers' `generate`; `how` are options that leave it greedy."""

    model: GenerateModel
    how: dict[str, object]

    async def answer(self, prompt: Sequence[int], limit: int) -> WayAnswer:
        return await in_thread(partial(self._answer, prompt, limit))

    def _answer(self, prompt: Sequence[int], limit: int, check: Check) -> WayAnswer:
        started = time.perf_counter()
        made = self.model.answer(prompt, limit, check, **self.how)
        return WayAnswer(made.token_ids, made.tokens_by_step, time.perf_counter() - started, made.ttft_s)


@dataclass(frozen=True, slots=True)
class PlainWay:
    """The plain loop of a target that serves nobody."""

    target: Target

    async def answer(self, prompt: Sequence[int], limit: int) -> WayAnswer:
        # In a thread, which ends after the pass in hand when it is interrupted.
        return await in_thread(partial(self._answer, prompt, limit))

    def _answer(self, prompt: Sequence[int], limit: int, check: Check) -> WayAnswer:
        started = time.perf_counter()
        tokens = tuple(plain_answer(self.target, prompt, limit, step=check))
        return WayAnswer(tokens, (1,) * len(tokens), time.perf_counter() - started, None)


@dataclass(frozen=True, slots=True)
class ClientWay:
    """A client of ours. `forget` is a prompt that replaces what its session holds, before the time is taken."""

    client: AsyncClient
    forget: Sequence[int]
    choices: dict[str, Any]  # Any: each field of ClientConfig has its own type
    clock: Callable[[], float] = time.perf_counter

    async def answer(self, prompt: Sequence[int], limit: int) -> WayAnswer:
        # All others compute the prompt anew at each turn; a session would keep the turn before.
        await self.client.complete(self.forget, max_new_tokens=1)
        started = self.clock()
        answer = await ask(self.client, prompt, lambda: None, self.clock, max_new_tokens=limit, **self.choices)
        wall_s = self.clock() - started
        by_pass = tuple(reply.tokens for reply in answer.replies if reply.tokens)
        return WayAnswer(answer.token_ids, by_pass, wall_s, answer.ttft_ms / 1e3)
