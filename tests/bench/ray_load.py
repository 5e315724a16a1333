"""Clients that write answer after answer while replicas come and go; every answer is compared."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from outrider_client.async_client import AsyncClient
from outrider_client.connection.link_state import LinkState
from outrider_client.core.events import Committed, LinkChanged, RolledBack, Unverified


@dataclass(slots=True)
class RayCounters:
    """Counters of all clients together; `differing` answers are not the target's own."""

    answers: int = 0
    differing: int = 0
    lost_links: int = 0


class RayLoad:
    """Load on the service in `config`; `expected` are the target's own answers to `asked`."""

    def __init__(self, config, models, asked, expected):
        self.counters = RayCounters()
        self._config, self._models = config, models
        self._work = list(zip(asked, expected, strict=True))
        self._is_over = False
        self._answered = asyncio.Event()

    async def run(self, num_clients, meanwhile):
        """Run so many clients while `meanwhile` runs, then let each finish its answer."""
        async with asyncio.TaskGroup() as group:
            for number in range(num_clients):
                group.create_task(self._write(number))
            try:
                await self._answers(num_clients)  # everybody is there
                await meanwhile()
                await self._answers(self.counters.answers + num_clients)
            finally:
                self._is_over = True
        return self.counters

    async def _answers(self, count):
        while self.counters.answers < count:
            # Without an await between check and wait, no answer can be missed.
            self._answered.clear()
            await self._answered.wait()

    async def _write(self, number):
        async with AsyncClient(self._config, models=self._models) as client:
            while not self._is_over:
                question, expected = self._work[number % len(self._work)]
                tokens = await self._answer(client, question, len(expected))
                self.counters.answers += 1
                self.counters.differing += tokens != expected
                self._answered.set()
                number += 1

    async def _answer(self, client, question, limit):
        tokens = []
        async with aclosing(client.generate(question.prompt, max_new_tokens=limit)) as events:
            async for event in events:
                match event:
                    case Committed(tokens=new) | Unverified(tokens=new):
                        tokens += new
                    case RolledBack(count=count):
                        del tokens[len(tokens) - count :]
                    case LinkChanged(state=LinkState.OFFLINE):
                        self.counters.lost_links += 1
        return tuple(tokens)


async def kill_and_update(ray, num_replicas):
    """Kill a replica, then replace all; each fault ends when there are as many replicas as before."""
    await _replaced(ray, {ray.kill_replica()}, num_replicas)
    before = set(ray.replicas())
    await asyncio.to_thread(ray.update)
    await _replaced(ray, before, num_replicas)


async def _replaced(ray, gone, num_replicas):
    """Wait until there are so many replicas and none of `gone` is left."""
    while len(now := ray.replicas()) < num_replicas or gone & set(now):  # noqa: ASYNC110 # processes set no event
        await asyncio.sleep(0.1)
