"""The server is killed in mid-answer and started again: is the final answer the undisturbed one?"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from outrider_bench.core.prompts import Question
from outrider_bench.core.server_process import ServerProcess
from outrider_client.async_client import AsyncClient
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Committed, Finished, LinkChanged, RolledBack, Unverified
from outrider_client.models.local_models import LocalModels


@dataclass(frozen=True, slots=True)
class Recovery:
    """One killing: after how many tokens, what was written alone meanwhile and taken back, whether all came right."""

    killed_after: int
    interrupted: bool  # false when the whole answer was there before the server died
    unverified: int
    rolled_back: int
    finish: str
    identical: bool


async def recoveries(
    server: ServerProcess,
    config: ClientConfig,
    models: LocalModels,
    asked: list[Question],
    expected: list[tuple[int, ...]],
    seed: int,
    step: Callable[[Recovery], None],
) -> list[Recovery]:
    """Kill once in every question's answer, at a random moment; answers are greedy and verified on reconnection."""
    generator = random.Random(seed)
    done = []
    for question, tokens in zip(asked, expected, strict=True):
        async with AsyncClient(config, models=models) as client:
            recovery = await _recover(server, client, question, tokens, _moment(generator, len(tokens)))
        done.append(recovery)
        step(recovery)
    return done


async def _recover(
    server: ServerProcess, client: AsyncClient, question: Question, expected: tuple[int, ...], kill_after: int
) -> Recovery:
    tokens: list[int] = []
    unverified = rolled_back = 0
    interrupted = False
    finish, restarting = "", None
    async with aclosing(client.generate(question.prompt, max_new_tokens=len(expected))) as events:
        async for event in events:
            match event:
                case Committed(tokens=new):
                    tokens += new
                case Unverified(tokens=new):
                    tokens += new
                    unverified += len(new)
                case RolledBack(count=count):
                    del tokens[len(tokens) - count :]
                    rolled_back += count
                case LinkChanged(state=LinkState.OFFLINE):
                    interrupted = True
                case Finished(reason=reason):
                    finish = reason
            if restarting is None and len(tokens) >= kill_after:
                server.kill()
                server.start()
                restarting = asyncio.create_task(asyncio.to_thread(server.wait_ready))
    if restarting is not None:
        await restarting
    return Recovery(kill_after, interrupted, unverified, rolled_back, finish, tuple(tokens) == expected)


def _moment(generator: random.Random, num_tokens: int) -> int:
    """After how many tokens to kill: early enough that verdicts are still to come."""
    return generator.randrange(1, max(2, num_tokens - 12))
