"""The service on a real local Ray cluster, with TLS and keys: the same answers and refusals, and nothing is lost when
replicas are killed or replaced amid the load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ray_load import RayLoad, kill_and_update
from ray_process import RayProcess
from typer.testing import CliRunner

from outrider_bench.core.prompts import questions
from outrider_bench.core.reference_answers import generated
from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.access import Access
from outrider_client.connection.grpc_transport import GrpcTransport
from outrider_client.connection.policy import Patience
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Open, Opened
from outrider_server.cli.app import app

pytest.importorskip("ray", reason='Ray is not installed: pip install -c constraints.txt ".[deploy]"')
# Six processes begin with torch: on a busy machine that takes minutes.
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

NEW = 24


def server_command(*options: str) -> str:
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


@pytest.fixture(scope="module")
def access(tmp_path_factory) -> Access:
    folder = tmp_path_factory.mktemp("access")
    server_command("certs", "--out", str(folder), "--host", "127.0.0.1")
    key = server_command("keys", "add", "tests", "--keys", str(folder / "keys.toml"))
    return Access(ca=folder / "ca.pem", key=key)


@pytest.fixture(scope="module")
def ray(access):
    folder = access.ca.parent
    (folder / "outrider.toml").write_text("""
        edge_bundle = false
        limits = { drain_s = 1 }
        security = { tls_cert = "server.pem", tls_key = "server.key", keys = "keys.toml" }
        deploy = { replicas = 2, cpus = 0.5 }
    """)
    with RayProcess(["--config", str(folder / "outrider.toml")]) as ray:
        yield ray


@pytest.fixture
def config(ray, access) -> ClientConfig:
    return ClientConfig(
        server=ray.address, access=access, wait_for_link_s=600, patience=Patience(floor_s=2.0), mode="stop-and-wait"
    )


@pytest.fixture
def transport(ray, access) -> GrpcTransport:
    return GrpcTransport(ray.address, access)


@pytest.fixture(scope="module")
def models() -> LocalModels:
    return LocalModels.load(ClientConfig())


@pytest.fixture(scope="module")
def work(models):
    asked = questions(models, 1)
    return asked, generated(target_dir(), asked, NEW)


@pytest.mark.parametrize("mode", ["stop-and-wait", "stream"])
async def test_the_targets_own_answers(config, models, work, mode):
    async with AsyncClient(replace(config, mode=mode), models=models) as client:
        for question, expected in zip(*work, strict=True):
            assert (await client.complete(question.prompt, max_new_tokens=NEW)).token_ids == expected


async def opened(transport: GrpcTransport, **changes) -> Opened:
    """Open a session and return the answer; the connection is then cut without closing it."""
    about = await transport.describe()
    fields = {
        "protocol_version": about.protocol_version,
        "target_fingerprint": about.target_fingerprint,
        "tokenizer_fingerprint": about.tokenizer_fingerprint,
    }
    connection = await transport.connect()
    try:
        connection.send(Open(**(fields | changes)))
        return await connection.receive()
    finally:
        await connection.close()


async def test_a_session_resumes_where_it_was(ray, access):
    for _ in range(5):  # by chance one in two would
        transport = GrpcTransport(ray.address, access)
        first = await opened(transport)
        again = await opened(transport, session_id=first.session_id)
        assert (again.session_id, again.resumed) == (first.session_id, True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"protocol_version": 999}, Reason.VERSION_MISMATCH), ({"tap": "none such"}, Reason.UNKNOWN_TAP)],
)
async def test_refused_with_the_servers_message(transport, changes, reason):
    with pytest.raises(Refusal) as refused:
        await opened(transport, **changes)
    assert refused.value.reason is reason
    assert refused.value.message


async def test_refused_without_a_key(ray, access):
    stranger = GrpcTransport(ray.address, replace(access, key=None))
    for attempt in (stranger.describe, lambda: opened_blindly(stranger)):
        with pytest.raises(Refusal) as refused:
            await attempt()
        assert refused.value.reason is Reason.NO_KEY


async def opened_blindly(transport: GrpcTransport) -> None:
    connection = await transport.connect()
    try:
        await connection.receive()
    finally:
        await connection.close()


async def test_nothing_is_lost_when_replicas_are_killed_and_replaced(ray, config, models, work):
    load = RayLoad(config, models, *work)
    before = set(ray.replicas())
    counters = await load.run(4, lambda: kill_and_update(ray, 2))
    assert counters.differing == 0
    assert counters.lost_links >= 4  # every stream was on a replica that is gone
    assert not before & set(ray.replicas())
