"""Hogs: each kind gets what it asks a real server for, while others are served, and leaves nothing behind."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.load.clients.hogs import KINDS, Hog, HogAssignment, hog_kinds
from outrider_bench.load.clients.texts import LoadText
from outrider_client import AsyncClient, ClientConfig
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.load import load_drafter, load_tap
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.errors import UsageError
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

PROMPT = (3, 7, 11, 2, 9)
NEW = 24
DRAFTER = "eagle2"
UNLIMITED_S = 60  # nothing takes that long; it only keeps a broken test from hanging


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(str(target_dir()))


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.json"
    path.write_text(json.dumps([asdict(LoadText("text", tuple(range(5, 45)), (1, 2, 3)))]))
    return path


@asynccontextmanager
async def serving(target, *, drafts: bool):
    source = drafter_dir(DRAFTER)
    drafters = [load_drafter(source, TargetWeights.load(target_dir()))] if drafts else []
    async with Server(Verifier(target, [load_tap(source, target_dir())], drafters=drafters)) as server:
        yield server


async def beside(hog: Hog, address: str, ready) -> list[int]:
    """An answer that begins once `ready()`, while the hog is at work."""
    enough, answered = asyncio.Event(), []

    async def answer() -> None:
        async with asyncio.timeout(UNLIMITED_S):
            while not ready():  # noqa: ASYNC110 # it is counted in passing
                await asyncio.sleep(0.02)
            async with AsyncClient(ClientConfig(server=address, drafter=DRAFTER, max_new_tokens=NEW)) as client:
                answered.extend((await client.complete(PROMPT)).token_ids)
        enough.set()

    await asyncio.gather(hog.run(enough.wait()), answer())
    return answered


@pytest.mark.parametrize("kind", KINDS)
async def test_a_hog_gets_what_it_asks_for_and_others_their_own_answers(target, texts, kind):
    async with serving(target, drafts=True) as server:
        hog = Hog(HogAssignment(kind, server.address, str(texts)))
        streams = server.verifier._streams
        reads = kind not in ("features", "silent")
        answered = await beside(hog, server.address, lambda: hog.counts.verdicts if reads else len(streams) >= 4)
        assert answered == plain_greedy(target, PROMPT, NEW)
        assert bool(hog.counts.verdicts) == reads
        assert hog.counts.refusals == {}
        async with asyncio.timeout(UNLIMITED_S):
            while server.verifier._streams:  # noqa: ASYNC110 # there is no such event
                await asyncio.sleep(0.02)


async def test_a_server_that_does_not_draft_refuses_by_name(target, texts):
    async with serving(target, drafts=False) as server:
        hog = Hog(HogAssignment("server-drafts", server.address, str(texts)))
        await beside(hog, server.address, lambda: hog.counts.refusals)
    assert set(hog.counts.refusals) == {"NO_SERVER_DRAFT"}
    assert hog.counts.verdicts == 0


def test_kinds_are_read_from_the_option():
    assert hog_kinds(None) == ()
    assert hog_kinds("all") == KINDS
    assert hog_kinds("silent,decode") == ("silent", "decode")
    with pytest.raises(UsageError, match="hogs=silent,pig: unknown pig"):
        hog_kinds("silent,pig")


def test_the_server_of_the_run_must_draft_for_those_who_ask_for_it():
    result = CliRunner().invoke(app, ["load", "--hogs", "server-drafts"])
    assert isinstance(result.exception, UsageError)
    assert "the server must draft" in str(result.exception)
