"""Real clients on a server with too little memory for all of them, and on one that stores a common beginning once."""

import asyncio
import dataclasses
from contextlib import AsyncExitStack

import pytest

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.policy import Patience
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_tap
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ...marks import slow

NEW = 24
MODES = ["stop-and-wait", "stream", "proactive", "pipelined"]
BEGINNING = tuple(range(20, 90))
PROMPTS = [(*BEGINNING, 5, 100 + i) for i in range(len(MODES))]


@pytest.fixture(scope="module")
def config(golden) -> ClientConfig:
    drafter = golden / "moa_tli0" / "drafter"
    return ClientConfig(
        target=golden / "target_tiny",
        drafter=drafter,
        max_new_tokens=NEW,
        shape=TreeShape(4, 4, 14),
        wait_for_link_s=60.0,
        patience=Patience(floor_s=10.0),  # this machine may be busy
    )


@pytest.fixture(scope="module")
def served(config):
    return Target.load(str(config.target)), load_tap(config.drafter, config.target)


@pytest.fixture(scope="module")
def plain(config) -> list[tuple[int, ...]]:
    oracle = Target.load(str(config.target))
    return [tuple(plain_greedy(oracle, prompt, NEW)) for prompt in PROMPTS]


async def answers(config: ClientConfig, server: Server, rounds: int) -> list[list[tuple[int, ...]]]:
    """All clients at once, each in its mode; several answers a session."""
    async with AsyncExitStack() as stack:
        at = dataclasses.replace(config, server=server.address)
        clients = [await stack.enter_async_context(AsyncClient(at)) for _ in MODES]
        came = []
        for _ in range(rounds):
            asked = [
                client.complete(prompt, mode=mode) for client, prompt, mode in zip(clients, PROMPTS, MODES, strict=True)
            ]
            done = await asyncio.gather(*asked)
            assert not any(completion.statistics.outages for completion in done)
            came.append([completion.token_ids for completion in done])
        return came


@pytest.mark.parametrize(
    ("layout", "swap"), [("contiguous", "64MiB"), *slow(("contiguous", "0"), ("paged", "0"), ("paged", "64MiB"))]
)
async def test_more_clients_than_there_is_room_for(config, served, plain, layout, swap):
    target, tap = served
    row = target.kv.bytes_per_token + 4 * tap.info.width
    limits = LimitsConfig(kv_memory=str(250 * row), shared_prefixes="none", room_wait_s=60, kv_layout=layout)
    async with Server(Verifier(target, [tap], dataclasses.replace(limits, kv_swap=swap))) as server:
        assert await answers(config, server, 2) == [plain, plain]
        memory = server.verifier.memory
        assert memory.evictions > 0
        assert (memory.restored_tokens > 0) == (swap != "0")
        assert memory.budget.used_bytes <= memory.budget.limit_bytes


@pytest.mark.parametrize("layout", ["paged", *slow("contiguous")])
@pytest.mark.parametrize(("sharing", "hits"), [("payer", True), ("none", False)])
async def test_a_common_beginning_changes_no_text(config, served, plain, sharing, hits, layout):
    target, tap = served
    async with Server(Verifier(target, [tap], LimitsConfig(shared_prefixes=sharing, kv_layout=layout))) as server:
        assert await answers(config, server, 2) == [plain, plain]
        memory = server.verifier.memory
        assert bool(memory.prefix_cache.num_bytes) == hits
