"""A thousand connections come and go: neither side is larger for it."""

import asyncio
import gc
import os
import threading
from collections import Counter

import pytest
from stage import PROMPT, answer, client, opened, plain, server, until
from talk import calling

from outrider_client.connection.link import ServerLink
from outrider_client.connection.policy import Backoff
from outrider_server.engine.sequence import Sequence
from outrider_server.scheduling.request import Request
from outrider_server.sessions.stream_writer import StreamWriter

NUM = 1000
AT_ONCE = 20
COUNTED = (StreamWriter, Sequence, Request, ServerLink, asyncio.Task)


def standing() -> Counter:
    """What is there after a collection: objects of ours, threads, descriptors."""
    gc.collect()
    kinds = Counter(type(each).__name__ for each in gc.get_objects() if type(each) in COUNTED)
    return kinds + Counter(threads=threading.active_count(), descriptors=len(os.listdir("/proc/self/fd")))


SLACK = Counter(
    StreamWriter=3, Sequence=3, Request=3, ServerLink=3, Task=9, threads=3, descriptors=9
)  # what happens to be under way


async def settled(before: Counter) -> None:
    """Until hardly more is there than before; gRPC closes its sockets in its own time."""
    await until(lambda: not standing() - before - SLACK, "as much as before", 60)


@pytest.fixture
async def warm():
    """A server that has served, so that all that is made once is there."""
    async with server(max_sessions=64, parked_sessions=64) as running:
        async with client(running.address) as mine:
            assert await answer(mine) == plain()
        await until(lambda: not running.verifier._streams, "no stream")
        yield running


async def test_one_client_that_loses_its_connection_again_and_again(warm):
    """It resumes one session; the connection is cut amid its answers."""
    async with client(warm.address, backoff=Backoff(first_s=0.001, cap_s=0.002)) as mine:
        assert await answer(mine) == plain()
        before = standing()
        session = mine._context.session
        for number in range(NUM // 5):
            await session.disconnect("cut by the test")
            await session.reconnect()
            if number % 40 == 0:
                assert await answer(mine) == plain()
        assert len(warm.verifier._sessions) == 1
        await settled(before)


async def test_a_thousand_streams_open_and_go_without_a_word(warm):
    before = standing()
    gate = asyncio.Semaphore(AT_ONCE)

    async def come_and_go(number: int) -> None:
        async with gate:
            match number % 3:
                case 0:  # says nothing
                    async with calling(warm.address):
                        pass
                case 1:  # opens and goes
                    async with opened(warm):
                        pass
                case _:  # asks and goes
                    async with opened(warm) as (talk, _):
                        await talk.draft(0, PROMPT[:-1], PROMPT[-1])

    await asyncio.gather(*(come_and_go(number) for number in range(NUM)))
    await until(lambda: not warm.verifier._streams, "no stream")
    await until(lambda: len(warm.verifier._sessions) <= 64, "all of them parked")
    for session in list(warm.verifier._sessions._sessions.values()):
        warm.verifier._sessions.forget(session)
    await settled(before)
    async with client(warm.address) as mine:
        assert await answer(mine) == plain()
