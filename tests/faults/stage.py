"""The real server and the real client that faults happen to, small and quick to start, and what they ought to say."""

import asyncio
import functools
from contextlib import asynccontextmanager
from pathlib import Path

from talk import calling

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.policy import Patience, Timeouts
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_tap
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_answer
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
TARGET = GOLDEN / "target_tiny"
DRAFTER = GOLDEN / "moa_tli0" / "drafter"
PROMPT = (3, 7, 11, 2, 9)
NEW = 24
ANSWER_S = 120.0  # no answer takes that long; it only keeps a broken test from hanging


@functools.cache
def served(dtype: str = "float32"):
    """Target and tap; the target runs in one verifier at a time."""
    return Target.load(str(TARGET), dtype), load_tap(str(DRAFTER), str(TARGET))


@functools.cache
def _oracle(dtype: str) -> Target:
    return Target.load(str(TARGET), dtype)


@functools.cache
def plain(prompt: tuple[int, ...] = PROMPT, num_tokens: int = NEW, dtype: str = "float32") -> tuple[int, ...]:
    """The answer of the plain loop."""
    return tuple(plain_answer(_oracle(dtype), prompt, num_tokens))


def verifier(kind: type[Verifier] = Verifier, dtype: str = "float32", **limits) -> Verifier:
    target, tap = served(dtype)
    return kind(target, [tap], LimitsConfig(**limits))


def server(port: int = 0, dtype: str = "float32", **limits) -> Server:
    return Server(verifier(dtype=dtype, **limits), port=port)


def config(address: str, **changes) -> ClientConfig:
    fields = {
        "mode": "stop-and-wait",
        "shape": TreeShape(4, 4, 14),
        "max_new_tokens": NEW,
        "offline_drafter": DRAFTER,
        "wait_for_link_s": 60.0,
        "patience": Patience(floor_s=1.0),  # this machine may be busy
        "timeouts": Timeouts(connect_s=60.0),
    }
    return ClientConfig(address, TARGET, DRAFTER, **(fields | changes))


@functools.cache
def models() -> LocalModels:
    """Shared by all clients."""
    return LocalModels.load(config("127.0.0.1:1"))


def client(address: str, **changes) -> AsyncClient:
    return AsyncClient(config(address, **changes), models=models())


async def answer(client: AsyncClient, prompt: tuple[int, ...] = PROMPT, **overrides) -> tuple[int, ...]:
    async with asyncio.timeout(ANSWER_S):
        return (await client.complete(prompt, **overrides)).token_ids


@asynccontextmanager
async def opened(server: Server, **fields):
    """A raw stream that has been opened: itself and what the server said."""
    async with calling(server.address) as talk:
        yield talk, await talk.open(server.verifier.describe(), **fields)


async def until(holds, what: str, timeout_s: float = 60.0) -> None:
    """For what no event tells: a count in another thread, process or library."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 # there is nothing that could be awaited
            await asyncio.sleep(0.01)
    assert holds(), what
