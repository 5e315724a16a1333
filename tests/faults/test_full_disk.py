"""No room on the disk: what needs a file says so, and sessions, which need none, go on."""

import asyncio
import sys

import grpc
import pytest
from stage import DRAFTER, TARGET, answer, client, plain, server, verifier

from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import Reason, Refusal, UsageError
from outrider_proto.status import error_from_rpc
from outrider_proto.verifier_pb2_grpc import BundlesStub
from outrider_server.bundles.catalogue import EdgeBundles
from outrider_server.cli.serving import _announce
from outrider_server.rpc.server import Server

CRAMPED = """\
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def makers_without_room(monkeypatch):
    """Whoever makes bundles has room for 4096 bytes a file."""
    create = asyncio.create_subprocess_exec

    async def limited(*command, **options):
        return await create(sys.executable, "-c", CRAMPED, *command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", limited)


async def manifest(address: str) -> None:
    """Ask until there is an answer. Raises Refusal."""
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(120):
        while True:
            try:
                await BundlesStub(channel).Manifest(pb.ManifestRequest())
                return
            except grpc.aio.AioRpcError as error:
                refusal = error_from_rpc(error)
                if getattr(refusal, "reason", None) is not Reason.BUNDLE_NOT_READY:
                    raise refusal from error


async def test_a_bundle_that_cannot_be_written_is_refused_and_answers_go_on(tmp_path, makers_without_room, caplog):
    bundles = EdgeBundles(str(TARGET), [str(DRAFTER)], ("float32",), tmp_path)
    async with Server(verifier(), bundles=bundles) as running, client(running.address) as mine:
        asking = asyncio.create_task(manifest(running.address))
        assert await answer(mine) == plain()
        with pytest.raises(Refusal) as refused:
            await asking
        assert refused.value.reason is Reason.NO_BUNDLE
        assert "edge bundle of" in caplog.text
        assert await answer(mine) == plain()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]  # nothing of it takes the room of others


async def test_a_ready_file_that_cannot_be_written_is_said_and_leaves_no_half(tmp_path, room_for):
    async with server() as running:
        ready = tmp_path / "ready"
        with room_for(10), pytest.raises(UsageError, match="cannot be written"):
            _announce(running, ready)
        assert not list(tmp_path.iterdir())
        _announce(running, ready)
        assert list(tmp_path.iterdir()) == [ready]
