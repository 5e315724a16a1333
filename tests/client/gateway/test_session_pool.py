"""Prompts go to the session that shares most with them, up to a limit at once."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from outrider_client.connection.link_state import LinkState
from outrider_client.gateway import link_watch
from outrider_client.gateway.session_pool import SessionPool
from outrider_proto.errors import LinkError


class Held:
    """A client whose session holds some tokens."""

    def __init__(self) -> None:
        self.tokens: tuple[int, ...] = ()
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def made() -> list[Held]:
    return []


@pytest.fixture
def pool(made):
    def make(drafter: str) -> Held:
        made.append(Held())
        return made[-1]

    return SessionPool(make, size=2, queue=1)


async def answer(pool: SessionPool, prompt: tuple[int, ...], drafter: str = "d") -> Held:
    async with pool.acquire(drafter, prompt) as client:
        client.tokens = (*prompt, 9, 9)
        return client


async def test_a_conversation_keeps_its_session(pool, made):
    one = await answer(pool, (1, 2, 3, 4))
    other = await answer(pool, (5, 6, 7, 8))
    assert one is not other
    assert await answer(pool, (1, 2, 3, 4, 9, 9, 5)) is one
    assert await answer(pool, (5, 6, 7, 8, 9, 9, 5)) is other
    assert await answer(pool, (3, 3, 3)) is one  # the one that has rested longer
    assert len(made) == 2


async def test_another_drafter_replaces_the_session_that_was_free_longest(pool, made):
    one = await answer(pool, (1, 2))
    other = await answer(pool, (5, 6))
    third = await answer(pool, (1, 2), "e")
    assert (one.is_closed, other.is_closed) == (True, False)
    assert pool.clients == [other, third]


async def test_a_request_cancelled_while_a_session_closes_keeps_none(pool, made):
    one = await answer(pool, (1, 2))
    await answer(pool, (5, 6))
    closing = asyncio.Event()

    async def close() -> None:
        closing.set()
        await asyncio.Event().wait()

    one.close = close
    leaving = asyncio.create_task(answer(pool, (1, 2), "e"))
    await closing.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert (pool.num_running, len(pool.clients)) == (0, 2)
    async with pool.acquire("e", (1,)), pool.acquire("f", (2,)):
        assert (pool.num_running, len(pool.clients)) == (2, 2)


async def test_a_private_answer_does_not_stop_the_probes(pool, monkeypatch):
    """A pause of the probes would reveal how long it took."""
    monkeypatch.setattr(link_watch, "WATCHED_S", 0)
    probe = CountingProbe()
    watch = link_watch.LinkWatch(pool, probe, lambda state: None)
    watching = asyncio.create_task(watch.run())
    page = watch.reports()
    await anext(page)
    async with pool.acquire("d", (), is_private=True):
        await probes(probe, 1)
        async with pool.acquire("d", (1,)):
            probe.num_probes = 0
            for _ in range(20):
                await asyncio.sleep(0)
            assert probe.num_probes == 0
    watching.cancel()
    await page.aclose()


class CountingProbe:
    """How often it was probed, and whether a connection is open."""

    def __init__(self) -> None:
        self.num_probes = 0
        self.is_open = False
        self.probed = asyncio.Event()

    async def measure(self) -> float:
        self.num_probes += 1
        self.probed.set()
        self.is_open = True
        return 0.1

    async def close(self) -> None:
        self.is_open = False


@pytest.fixture
async def probed(pool, monkeypatch):
    """A running watch with a second of a millisecond, and its probe."""
    monkeypatch.setattr(link_watch, "WATCHED_S", 0.001)
    probe = CountingProbe()
    watch = link_watch.LinkWatch(pool, probe, lambda state: None)
    watching = asyncio.create_task(watch.run())
    yield watch, probe
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert not probe.is_open


async def probes(probe: CountingProbe, count: int) -> None:
    async with asyncio.timeout(10):
        while probe.num_probes < count:
            probe.probed.clear()
            await probe.probed.wait()


async def test_an_idle_gateway_sends_nothing_until_somebody_looks(probed):
    watch, probe = probed
    await probes(probe, 1)  # at the start
    await asyncio.sleep(0.1)
    assert probe.num_probes == 1
    assert not probe.is_open
    watch.wake()
    await probes(probe, 2)
    page = watch.reports()
    await anext(page)
    await probes(probe, 9)
    await page.aclose()


@pytest.mark.parametrize(("seconds", "state"), [(2, LinkState.OFFLINE), (3, LinkState.CONNECTING)])
async def test_a_gateway_that_did_not_run_says_nothing_of_the_link(pool, monkeypatch, seconds, state):
    """A probe is given up after two seconds."""
    clock = itertools.count(0, seconds)
    monkeypatch.setattr(link_watch, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    class Fails(CountingProbe):
        async def measure(self) -> float:
            raise LinkError("no answer")

    watch = link_watch.LinkWatch(pool, Fails(), lambda state: None)
    await watch._probe_server()
    assert watch.state is state


async def test_a_request_that_stops_waiting_leaves_no_trace(pool):
    async with pool.acquire("d", (1,)), pool.acquire("d", (2,)):
        waiting = asyncio.create_task(answer(pool, (3,)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert pool.num_waiting == 0
    await answer(pool, (3,))
    await pool.close()
    assert pool.clients == []
