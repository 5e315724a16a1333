"""Clients that write answer after answer while replicas come and go: does everything they write stay the target's?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from outrider_bench.core.prompts import Question
from outrider_client.async_client import AsyncClient
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Committed, LinkChanged, RolledBack, Unverified
from outrider_client.models.local_models import LocalModels


@dataclass(slots=True)
class Tally:
    """What all clients together saw. `differing`: answers that are not the target's own."""

    answers: int = 0
    differing: int = 0
    tokens: int = 0
    lost_links: int = 0
    rolled_back: int = 0


class RayLoad:
    """`config` says where the service is; `expected` are the target's own answers to `asked`."""

    def __init__(
        self,
        config: ClientConfig,
        models: LocalModels,
        asked: Sequence[Question],
        expected: Sequence[tuple[int, ...]],
    ) -> None:
        self.tally = Tally()
        self._config = config
        self._models = models
        self._work = list(zip(asked, expected, strict=True))
        self._over = False
        self._answered = asyncio.Event()

    async def run(
        self, num_clients: int, meanwhile: Callable[[], Coroutine[Any, Any, None]]
    ) -> Tally:  # Any: asyncio's
        """Load by so many clients while `meanwhile` runs, and until each has finished the answer it is at."""
        async with asyncio.TaskGroup() as group:
            for number in range(num_clients):
                group.create_task(self._write(number))
            try:
                await self.answers(num_clients)  # everybody is there
                await meanwhile()
                await self.answers(self.tally.answers + num_clients)
            finally:
                self._over = True
        return self.tally

    async def answers(self, count: int) -> None:
        """Until so many have been written."""
        while self.tally.answers < count:
            self._answered.clear()
            await self._answered.wait()

    async def _write(self, number: int) -> None:
        async with AsyncClient(self._config, models=self._models) as client:
            while not self._over:
                question, expected = self._work[number % len(self._work)]
                tokens = await self._answer(client, question, len(expected))
                self.tally.answers += 1
                self.tally.differing += tokens != expected
                self.tally.tokens += len(tokens)
                self._answered.set()
                number += 1

    async def _answer(self, client: AsyncClient, question: Question, limit: int) -> tuple[int, ...]:
        tokens: list[int] = []
        async with aclosing(client.generate(question.prompt, max_new_tokens=limit)) as events:
            async for event in events:
                match event:
                    case Committed(tokens=new) | Unverified(tokens=new):
                        tokens += new
                    case RolledBack(count=count):
                        del tokens[len(tokens) - count :]
                        self.tally.rolled_back += count
                    case LinkChanged(state=LinkState.OFFLINE):
                        self.tally.lost_links += 1
        return tuple(tokens)
