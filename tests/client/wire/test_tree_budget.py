"""A busy server asks for smaller trees, over gRPC: clients send them, and write the same text."""

import asyncio
import functools
from dataclasses import replace
from pathlib import Path

import pytest

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.policy import Patience
from outrider_client.core.events import Committed, Cycle
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_tap
from outrider_proto.frames import Draft
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.scheduling import tree_budget
from outrider_server.sessions.verifier import Verifier

from ...marks import slow

NEW = 60
PROMPTS = [(3, 7, 11, 2, 9), tuple(range(10, 50)), (200,)]


@pytest.fixture
def config(golden) -> ClientConfig:
    return ClientConfig(
        target=golden / "target_tiny",
        drafter=golden / "moa_tli0" / "drafter",
        max_new_tokens=NEW,
        shape=TreeShape(4, 4, 14),
        wait_for_link_s=30,
        patience=Patience(floor_s=10.0),  # this machine may be busy
    )


@functools.cache
def target(path: Path) -> Target:
    return Target.load(str(path))


@functools.cache
def plain(path: Path, prompt: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(plain_greedy(Target.load(str(path)), prompt, NEW))


@pytest.fixture
def always_busy(monkeypatch) -> None:
    """Whatever the time on this machine."""
    for name in ("_BUSY", "_AT_EASE", "_SHARED"):
        monkeypatch.setattr(tree_budget, name, float("-inf"))


def server_for(config, **limits) -> Server:
    tap = load_tap(str(config.drafter), str(config.target))
    return Server(Verifier(target(config.target), [tap], LimitsConfig(**limits)))


async def written(config, server: Server, prompt, mode: str) -> list:
    async with AsyncClient(replace(config, server=server.address)) as client:
        return [event async for event in client.generate(prompt, mode=mode)]


def written_tokens(events: list) -> tuple[int, ...]:
    return tuple(token for event in events if isinstance(event, Committed) for token in event.tokens)


def sizes(events: list) -> list[tuple[int, int]]:
    """For each draft its number of nodes, and the limit in the verdict before it."""
    cycles = [event for event in events if isinstance(event, Cycle) and isinstance(event.request, Draft)]
    asked = [0, *(cycle.verdict.tree_budget for cycle in cycles)]
    return [(len(cycle.request.tree), limit) for cycle, limit in zip(cycles, asked, strict=False)]


@pytest.mark.usefixtures("always_busy")
@pytest.mark.parametrize("mode", ["stop-and-wait", "pipelined", *slow("proactive", "auto")])
async def test_trees_shrink_and_the_text_stays(config, mode):
    async with server_for(config, batch_tokens=12) as server:
        answers = await asyncio.gather(*(written(config, server, prompt, mode) for prompt in PROMPTS))
    for prompt, events in zip(PROMPTS, answers, strict=True):
        assert written_tokens(events) == plain(config.target, prompt)
        if mode == "stop-and-wait":
            assert all(nodes <= (limit or 14) for nodes, limit in sizes(events))
        if mode != "auto":  # it may let the server write alone
            assert 1 <= events[-1].statistics.tree_budget <= 8
            assert sizes(events)[-1][0] < 14


@pytest.mark.usefixtures("always_busy")
async def test_a_server_that_asks_for_nothing_gets_whole_trees(config):
    async with server_for(config, batch_tokens=12, adaptive_trees=False) as server:
        events = await written(config, server, PROMPTS[0], "stop-and-wait")
    assert events[-1].statistics.tree_budget == 0
    assert max(nodes for nodes, _ in sizes(events)) == 14
