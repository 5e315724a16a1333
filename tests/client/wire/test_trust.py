"""The real client and the real server over TLS with keys; and whatever keeps them apart: said clearly, and at once."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider_client import Access, AsyncClient, ClientConfig
from outrider_client.connection.diagnosis import TrustError
from outrider_client.connection.emulated import emulated_link
from outrider_client.connection.grpc_transport import GrpcConnection, GrpcTransport
from outrider_client.connection.policy import Patience, Timeouts
from outrider_client.models.local_models import LocalModels
from outrider_client.pull.pull import PullConfig, pull_bundle
from outrider_drafters.load import load_tap
from outrider_proto.errors import LinkError, Reason, Refusal
from outrider_proto.frames import Ping
from outrider_server.config.config import LimitsConfig, SecurityConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.security import certs
from outrider_server.security.authenticator import Authenticator
from outrider_server.security.keys import Key, digest_of, new_secret, write_keys
from outrider_server.sessions.verifier import Verifier

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
TARGET, DRAFTER = GOLDEN / "target_tiny", GOLDEN / "moa_tli0" / "drafter"
PROMPT, NEW = (3, 7, 11, 2, 9), 24
WAIT_S = 60


@pytest.fixture(scope="module")
def models() -> LocalModels:
    return LocalModels.load(ClientConfig("127.0.0.1:1", TARGET, DRAFTER))


@pytest.fixture(scope="module")
def loaded():
    return Target.load(str(TARGET)), load_tap(str(DRAFTER), str(TARGET))


@pytest.fixture(scope="module")
def plain() -> tuple[int, ...]:
    return tuple(plain_greedy(Target.load(str(TARGET)), PROMPT, NEW))


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """An authority, a second one, and what each has signed."""
    folder = tmp_path_factory.mktemp("pki")
    for name in ("ca", "other"):
        authority = certs.new_authority(9)
        put(folder, authority, name)
        put(folder, certs.new_client_certificate(authority, "phone", 9), f"{name}-phone")
        put(folder, certs.new_server_certificate(authority, ["127.0.0.1", "server.example"], 9), f"{name}-server")
    authority = certs.read_issued(folder / "ca.pem", folder / "ca.key")
    put(folder, certs.new_server_certificate(authority, ["server.example"], 9), "elsewhere")
    put(folder, certs.new_server_certificate(authority, ["127.0.0.1"], -0.02), "expired")  # some minutes ago
    return folder


def put(folder, issued, name):
    certs.write_issued(issued, folder / f"{name}.pem", folder / f"{name}.key", force=True)


@asynccontextmanager
async def serving(loaded, security: SecurityConfig | None = None, port: int = 0, **more):
    verifier = Verifier(loaded[0], [loaded[1]], LimitsConfig(), **more)
    async with Server(verifier, port=port, authenticator=Authenticator(security)) as server:
        yield server


def client(models, address, access, **more) -> AsyncClient:
    config = ClientConfig(
        address,
        TARGET,
        DRAFTER,
        mode="stop-and-wait",
        max_new_tokens=NEW,
        access=access,
        patience=Patience(floor_s=10.0),  # this machine may be busy
        timeouts=Timeouts(connect_s=WAIT_S),
        **{"wait_for_link_s": 60.0} | more,
    )
    return AsyncClient(config, models=models)


def tls(pki, name="ca-server", **more) -> SecurityConfig:
    return SecurityConfig(pki / f"{name}.pem", pki / f"{name}.key", **more)


async def answer(client) -> tuple[int, ...]:
    async with asyncio.timeout(WAIT_S):
        return (await client.complete(PROMPT)).token_ids


async def test_an_answer_over_mutual_tls_with_a_key(loaded, models, pki, plain, tmp_path):
    secret = new_secret("phone")
    write_keys(tmp_path / "keys", [Key("phone", digest_of(secret))])
    (tmp_path / "key").write_text(secret)
    mine = {"client_cert": pki / "ca-phone.pem", "client_key": pki / "ca-phone.key", "key_file": tmp_path / "key"}
    access = Access(ca=pki / "ca.pem", **mine)
    security = tls(pki, client_ca=pki / "ca.pem", keys=tmp_path / "keys")
    async with serving(loaded, security) as server, client(models, server.address, access) as remote:
        assert await answer(remote) == plain
        assert (await remote.describe()).target_name


async def test_an_emulated_link_leaves_the_certificate_the_servers_own(loaded, models, pki, plain):
    """The link begins at another address; the name to be checked is still the server's."""
    access = Access(ca=pki / "ca.pem")
    async with serving(loaded, tls(pki)) as server, emulated_link("lan", server.address, "proxy") as emulated:
        async with client(models, emulated.link.address, access.through(server.address)) as remote:
            assert await answer(remote) == plain
        with pytest.raises(TrustError, match="another name"):
            await GrpcTransport(emulated.link.address, access.through("x.example:1")).describe()


CASES = {  # the server's certificate, whether it wants one of clients; the client's side; what it is told
    "signed by somebody else": ("other-server", False, {"ca": "ca"}, "that is not trusted here: give --ca"),
    "no authority given": ("ca-server", False, {"tls": True}, "that is not trusted here: give --ca"),
    "for another name": ("elsewhere", False, {"ca": "ca"}, "for another name"),
    "the wrong name asked for": ("ca-server", False, {"ca": "ca", "server_name": "x.example"}, "for another name"),
    "expired": ("expired", False, {"ca": "ca"}, "has expired"),
    "plaintext to TLS": ("ca-server", False, {}, "it speaks TLS: give --tls, or --ca"),
    "plaintext to mutual TLS": ("ca-server", True, {}, "it speaks TLS: give --tls, or --ca"),
    "TLS to plaintext": (None, False, {"ca": "ca"}, "does not speak TLS"),
    "no client certificate": ("ca-server", True, {"ca": "ca"}, "may want --set client-cert"),
    "another's client certificate": (
        "ca-server",
        True,
        {"ca": "ca", "client": "other-phone"},
        "may not accept this client",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_keeps_them_apart_is_said_at_once_and_is_final(case, loaded, models, pki):
    """It is so with offline_start, too: a client that can never connect must not write alone for ever."""
    certificate, wants, fields, complaint = CASES[case]
    fields = dict(fields)
    if (name := fields.pop("client", None)) is not None:
        fields |= {"client_cert": pki / f"{name}.pem", "client_key": pki / f"{name}.key"}
    if "ca" in fields:
        fields["ca"] = pki / f"{fields['ca']}.pem"
    access = Access(**fields)
    security = None if certificate is None else tls(pki, certificate, client_ca=pki / "ca.pem" if wants else None)
    async with serving(loaded, security) as server:
        async with client(models, server.address, access, offline_start=True) as remote:
            with pytest.raises(TrustError, match=complaint) as refused:
                await answer(remote)
            with pytest.raises(TrustError, match=complaint):
                await remote.describe()
        assert server.address in str(refused.value)
        with pytest.raises(TrustError, match=complaint):
            await pull_bundle(PullConfig(server.address, access=access, out=pki / "out"))


async def test_a_stranger_in_the_place_of_a_server_that_was_reached_is_the_links_fault(loaded, pki):
    """A captive portal goes away again."""
    async with serving(loaded, tls(pki)) as server:
        transport = GrpcTransport(server.address, Access(ca=pki / "ca.pem"))
        await transport.describe()
        port = server.port
    async with serving(loaded, tls(pki, "other-server"), port):
        with pytest.raises(LinkError, match="not trusted here"):
            await transport.connect()
    async with serving(loaded, tls(pki), port):
        await transport.describe()


@pytest.mark.parametrize("offline_start", [False, True])
async def test_a_wrong_key_is_final(loaded, models, tmp_path, offline_start):
    write_keys(tmp_path / "keys", [Key("a", digest_of(new_secret("a")))])
    async with serving(loaded, SecurityConfig(keys=tmp_path / "keys")) as server:
        for access in (Access(), Access(key=new_secret("a"))):
            async with client(models, server.address, access, offline_start=offline_start) as remote:
                with pytest.raises(Refusal) as refused:
                    await answer(remote)
                assert refused.value.reason is Reason.NO_KEY


async def test_a_refusal_is_told_though_a_frame_was_being_sent(loaded, tmp_path):
    """gRPC then has an error of its own in the place of the server's."""
    write_keys(tmp_path / "keys", [Key("a", digest_of(new_secret("a")))])
    async with serving(loaded, SecurityConfig(keys=tmp_path / "keys")) as server:
        transport = GrpcTransport(server.address)
        for _ in range(4):  # two of five streams met that error; more wrong keys are a refusal of another kind
            connection = GrpcConnection(server.address, transport.channel(), transport.access.metadata())
            for number in range(3):
                connection.send(Ping(number))
            with pytest.raises(Refusal) as refused:
                await connection.receive()
            await connection.close()
            assert refused.value.reason is Reason.NO_KEY


async def test_the_key_is_in_no_exception(loaded, tmp_path):
    secret = new_secret("nobody")
    write_keys(tmp_path / "keys", [])
    async with serving(loaded, SecurityConfig(keys=tmp_path / "keys")) as server:
        with pytest.raises(Refusal) as refused:
            await GrpcTransport(server.address, Access(key=secret)).describe()
    chain, error = "", refused.value
    while error is not None:
        chain += repr(error) + str(error)
        error = error.__cause__
    assert secret.rpartition(".")[2] not in chain
