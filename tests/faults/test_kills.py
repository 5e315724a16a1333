"""kill -9 of the server at random moments, under several clients at once in different modes: every answer is the
undisturbed one's."""

import asyncio
import random
from contextlib import aclosing

import pytest
from mortal import MortalServer
from stage import ANSWER_S, PROMPT, client, plain

NUM_KILLS = 4
NEW = 40
MODES = ("stop-and-wait", "pipelined", "stream", "auto")


@pytest.mark.slow
async def test_killed_again_and_again_under_several_clients():
    generator = random.Random(7)
    heard = Heard()
    async with MortalServer() as mortal:
        await mortal.tell("start")
        clients = [client(mortal.address, mode=mode, max_new_tokens=NEW) for mode in MODES]
        prompts = [(*PROMPT, number) for number in range(len(MODES))]
        writing = [asyncio.create_task(write_on(*each, heard)) for each in zip(clients, prompts, strict=True)]
        try:
            async with asyncio.timeout(2 * ANSWER_S):
                for _ in range(NUM_KILLS):
                    await heard.more(generator.randrange(1, 2 * NEW))
                    await mortal.tell("kill")
                    await mortal.tell("start")
                heard.enough = True
                assert sum(await asyncio.gather(*writing)) >= len(MODES)
        finally:
            for task in writing:
                task.cancel()
            for each in clients:
                await each.close()


class Heard:
    """Tokens that came, over all clients."""

    def __init__(self) -> None:
        self.enough = False
        self._count = 0
        self._came = asyncio.Event()

    def take(self, num_tokens: int) -> None:
        self._count += num_tokens
        self._came.set()

    async def more(self, num_tokens: int) -> None:
        wanted = self._count + num_tokens
        while self._count < wanted:
            self._came.clear()
            await self._came.wait()


async def write_on(mine, prompt: tuple[int, ...], heard: Heard) -> int:
    """One answer after the other, until it is enough; how many."""
    for count in range(1, 1000):
        async with aclosing(mine.generate(prompt)) as events:
            async for event in events:
                heard.take(len(getattr(event, "tokens", ())))
        assert tuple(mine.tokens[len(prompt) :]) == plain(prompt, NEW)
        if heard.enough:
            return count
    raise AssertionError("it is never enough")
