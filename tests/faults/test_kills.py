"""kill -9 of the server at random moments, under clients in different modes, each of which writes on alone meanwhile:
the server that comes back knows nothing, and every answer is the undisturbed one's."""

import asyncio
import random
from contextlib import aclosing

import pytest
from mortal import MortalServer
from stage import ANSWER_S, PROMPT, client, plain

from outrider_client.core.events import Unverified

from ..marks import needs_int8, slow

NEW = 40
EVERY_MODE = ["stop-and-wait", "pipelined", "stream", "auto"]


@pytest.mark.parametrize(
    ("modes", "num_kills", "dtype"),
    [
        (["stop-and-wait"], 2, "float32"),
        *slow((EVERY_MODE, 12, "float32")),
        pytest.param(EVERY_MODE, 4, "int8", marks=[needs_int8, pytest.mark.slow]),
    ],
)
async def test_killed_again_and_again(modes, num_kills, dtype):
    generator = random.Random(7)
    heard = Heard()
    async with MortalServer(dtype) as mortal:
        await mortal.tell("start")
        clients = [client(mortal.address, mode=mode, max_new_tokens=NEW) for mode in modes]
        prompts = [(*PROMPT, number) for number in range(len(modes))]
        writing = [asyncio.create_task(write_on(*each, heard, dtype)) for each in zip(clients, prompts, strict=True)]
        try:
            async with asyncio.timeout(2 * ANSWER_S):
                for _ in range(num_kills):
                    await heard.more(generator.randrange(1, 2 * NEW))
                    # Listening begins first: all that a drafter writes alone may come before "kill" is answered.
                    await asyncio.gather(heard.more(3, alone=True), mortal.tell("kill"))
                    await mortal.tell("start")
                heard.enough = True
                assert sum(await asyncio.gather(*writing)) >= len(modes)
        finally:
            for task in writing:
                task.cancel()
            for each in clients:
                await each.close()


class Heard:
    """Tokens that came, over all clients, and those among them that a drafter wrote alone."""

    def __init__(self) -> None:
        self.enough = False
        self._counts = {False: 0, True: 0}
        self._came = asyncio.Event()

    def take(self, num_tokens: int, *, alone: bool) -> None:
        self._counts[alone] += num_tokens
        self._came.set()

    async def more(self, num_tokens: int, *, alone: bool = False) -> None:
        wanted = self._counts[alone] + num_tokens
        while self._counts[alone] < wanted:
            self._came.clear()
            await self._came.wait()


async def write_on(mine, prompt: tuple[int, ...], heard: Heard, dtype: str) -> int:
    """One answer after the other, until it is enough; how many."""
    for count in range(1, 1000):
        async with aclosing(mine.generate(prompt)) as events:
            async for event in events:
                heard.take(len(getattr(event, "tokens", ())), alone=isinstance(event, Unverified))
        assert tuple(mine.tokens[len(prompt) :]) == plain(prompt, NEW, dtype)
        if heard.enough:
            return count
    raise AssertionError("it is never enough")
