"""TLS on the real server: certificates renewed while it serves, clients' certificates, and what never gets so far."""

import asyncio
import logging

import grpc
import pytest
from cryptography import x509
from talk import TAP, calling
from tiny_targets import target

from outrider_proto import verifier_pb2 as pb
from outrider_proto import verifier_pb2_grpc as stubs
from outrider_server.config.security import SecurityConfig
from outrider_server.rpc.server import Server
from outrider_server.security import certs
from outrider_server.security.authenticator import Authenticator
from outrider_server.sessions.verifier import Verifier

HOSTS = ["127.0.0.1", "server.example"]


@pytest.fixture
def authority():
    return certs.new_authority(9)


@pytest.fixture
def folder(tmp_path, authority):
    certs.write_issued(authority, tmp_path / "ca.pem", tmp_path / "ca.key")
    issue(tmp_path, certs.new_server_certificate(authority, HOSTS, 9), "server")
    issue(tmp_path, certs.new_client_certificate(authority, "phone", 9), "phone")
    return tmp_path


def issue(folder, issued, name):
    certs.write_issued(issued, folder / f"{name}.pem", folder / f"{name}.key", force=True)


def serving(folder, **more) -> Server:
    security = SecurityConfig(folder / "server.pem", folder / "server.key", **more)
    return Server(Verifier(target(), [TAP]), authenticator=Authenticator(security))


def trusting(folder, client=None) -> grpc.ChannelCredentials:
    pair = () if client is None else ((folder / f"{client}.key").read_bytes(), (folder / f"{client}.pem").read_bytes())
    return grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes(), *pair)


async def describes(server, credentials, *options) -> bool:
    own = [("grpc.use_local_subchannel_pool", 1), *options]
    async with grpc.aio.secure_channel(server.address, credentials, options=own) as channel:
        try:
            return bool((await stubs.VerifierStub(channel).Describe(pb.DescribeRequest(), timeout=20)).vocab_size)
        except grpc.aio.AioRpcError:
            return False


async def test_a_session_over_tls(folder):
    async with serving(folder) as server, calling(server.address, credentials=trusting(folder)) as talk:
        assert (await talk.open(server.verifier.describe())).session_id
        assert await describes(server, trusting(folder), ("grpc.ssl_target_name_override", "server.example"))
        assert not await describes(server, trusting(folder), ("grpc.ssl_target_name_override", "other.example"))


async def test_a_renewed_certificate_is_used_for_the_next_connection(folder):
    async with serving(folder) as server, calling(server.address, credentials=trusting(folder)) as talk:
        await talk.open(server.verifier.describe())
        other = certs.new_authority(9)
        issue(folder, certs.new_server_certificate(other, HOSTS, 9), "server")
        assert not await describes(server, trusting(folder))
        issue(folder, other, "ca")
        assert await describes(server, trusting(folder))
        (folder / "server.pem").write_text("half a file")  # as it may be while somebody copies: the old one stays
        assert await describes(server, trusting(folder))
        assert (await talk.decode(0, (), 1, 1))[0].bonus is not None  # streams that are open know nothing of it


async def test_unusable_files_are_read_once_and_not_for_every_caller(folder, caplog):
    caplog.set_level(logging.ERROR, "outrider_server.security.tls")
    async with serving(folder) as server:
        (folder / "server.pem").write_text("half a file")
        for _ in range(3):
            assert await describes(server, trusting(folder))
    assert len(caplog.records) == 1


async def test_only_clients_with_a_certificate_connect_and_it_names_them(folder):
    seen = []
    server = serving(folder, client_ca=folder / "ca.pem")
    admit = server.authenticator.admit
    server.authenticator.admit = lambda *args: seen.append(admit(*args)) or seen[-1]
    async with server:
        assert await describes(server, trusting(folder, "phone"))
        assert not await describes(server, trusting(folder))
        issue(folder, certs.new_client_certificate(certs.new_authority(9), "phone", 9), "phone")
        assert not await describes(server, trusting(folder, "phone"))
    assert [principal.payer for principal in seen] == ["cert:phone"]


async def test_clients_whose_certificates_have_no_name_are_told_apart(folder, authority, monkeypatch):
    monkeypatch.setattr(certs, "_name", lambda name: x509.Name([]))
    for client in ("one", "other"):
        issue(folder, certs.new_client_certificate(authority, client, 9), client)
    seen = []
    server = serving(folder, client_ca=folder / "ca.pem")
    admit = server.authenticator.admit
    server.authenticator.admit = lambda *args: seen.append(admit(*args)) or seen[-1]
    async with server:
        for client in ("one", "other", "one"):
            assert await describes(server, trusting(folder, client))
    one, other, again = (principal.payer for principal in seen)
    assert one.startswith("cert:sha256-")
    assert other.startswith("cert:sha256-")
    assert one == again != other


async def test_a_connection_that_says_nothing_is_ended(folder):
    async with serving(folder, handshake_s=0.2) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


async def test_headers_have_a_size(folder):
    async with serving(folder) as server, grpc.aio.secure_channel(server.address, trusting(folder)) as channel:
        call = stubs.VerifierStub(channel).Describe(pb.DescribeRequest(), metadata=(("x", "y" * 20_000),))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        small = stubs.VerifierStub(channel).Describe(pb.DescribeRequest(), metadata=(("x", "y" * 4000),))
        assert (await small).vocab_size
