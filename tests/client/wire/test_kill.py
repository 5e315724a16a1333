"""kill -9 amid an answer: the server that comes back knows nothing, and the answer is the undisturbed one's."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from mortal_server import MortalServer

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.policy import Patience
from outrider_client.core.events import Committed, RolledBack, Unverified
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

from ...marks import slow

PROMPT = (1, 2, 3)
NEW = 80


@pytest.fixture(scope="module")
def pair() -> tuple[Path, Path]:
    golden = Path(__file__).parents[2] / "data" / "golden"
    return golden / "target_tiny", golden / "moa_tli0" / "drafter"


@pytest.fixture(scope="module")
def server(pair):
    server = MortalServer(*pair)
    yield server
    server.close()


@pytest.fixture(scope="module")
def undisturbed(pair) -> list[int]:
    return plain_greedy(Target.load(str(pair[0])), PROMPT, NEW)


@pytest.mark.parametrize(("mode", "num_kills"), [("stop-and-wait", 2), *slow(("stop-and-wait", 20), ("stream", 20))])
async def test_killed_and_restarted(server, pair, undisturbed, mode, num_kills):
    generator = random.Random(mode)
    target, drafter = pair
    patience = Patience(floor_s=1.0)
    config = ClientConfig(
        server.address, target, drafter, max_new_tokens=NEW, mode=mode, wait_for_link_s=60, patience=patience
    )
    server.tell("start")
    async with AsyncClient(config) as client:
        for _ in range(num_kills):
            tokens = await answer_with_a_kill(client, server, kill_at=generator.randrange(NEW - 1))
            assert tokens == undisturbed
    server.tell("kill")


async def answer_with_a_kill(client: AsyncClient, server: MortalServer, kill_at: int) -> list[int]:
    """The answer's tokens; the server is killed once there are `kill_at`, and back when the drafter has written three
    or all that were left."""
    tokens: list[int] = []
    num_unverified = 0
    killed = restarted = False
    async with contextlib.aclosing(client.generate(PROMPT)) as events:
        async for event in events:
            match event:
                case Committed() | Unverified():
                    tokens += event.tokens
                    num_unverified += isinstance(event, Unverified)
                case RolledBack():
                    del tokens[event.first :]
            if not killed and len(tokens) >= kill_at:
                server.tell("kill")
                killed = True
            if killed and not restarted and (num_unverified >= 3 or (num_unverified and len(tokens) == NEW)):
                server.tell("start")
                restarted = True
    if not restarted:
        server.tell("start")
    return tokens
