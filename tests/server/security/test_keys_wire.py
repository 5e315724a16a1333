"""Keys, scopes and quotas on the real server over real gRPC; TLS with certificates renewed while it serves, clients'
certificates, and what never gets so far."""

import asyncio
import logging
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from talk import PROMPT, TAP, Clock, calling
from tiny_targets import target

from outrider_proto import verifier_pb2 as pb
from outrider_proto import verifier_pb2_grpc as stubs
from outrider_proto.errors import Reason
from outrider_proto.frames import Decode, Finish, Open, Ping, Pong, ServerTree
from outrider_proto.status import error_from_rpc
from outrider_proto.tree import DraftTree
from outrider_server.config.config import LimitsConfig, SecurityConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.rpc.server import Server
from outrider_server.security import authenticator as authenticator_module
from outrider_server.security import certs
from outrider_server.security.authenticator import Authenticator
from outrider_server.security.keys import Key, digest_of, new_secret, read_keys, write_keys
from outrider_server.security.principal import Principal, Quota, Scope
from outrider_server.sessions.stream_reader import StreamReader
from outrider_server.sessions.verifier import Verifier


@pytest.fixture
def keys_file(tmp_path):
    return tmp_path / "keys.toml"


def give(file, name: str, *scopes: Scope, **quota: int) -> str:
    """A new key."""
    secret, known = new_secret(name), read_keys(file) if file.exists() else {}
    key = Key(name, digest_of(secret), frozenset(scopes or Scope), Quota(**quota))
    write_keys(file, [*known.values(), key])
    return secret


@asynccontextmanager
async def serving(file, clock=None, longest_wait_s=30.0, **limits):
    security = SecurityConfig(keys=file, unopened_streams=limits.pop("unopened_streams", 128))
    more = {} if clock is None else {"clock": clock}
    verifier = Verifier(target(), [TAP], LimitsConfig(**limits), longest_wait_s=longest_wait_s, **more)
    async with Server(verifier, authenticator=Authenticator(security)) as server:
        yield server


def about(server: Server):
    return server.verifier.describe()


def open_frame(server: Server) -> Open:
    known = about(server)
    return Open(known.protocol_version, known.target_fingerprint, known.tokenizer_fingerprint)


@asynccontextmanager
async def joined(server: Server, key: str):
    async with calling(server.address, key) as talk:
        await talk.open(about(server))
        yield talk


async def refused(call) -> Reason:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return error_from_rpc(failed.value).reason


async def test_without_a_key_only_health_answers(keys_file):
    give(keys_file, "a")
    async with serving(keys_file) as server, grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        assert await refused(stubs.VerifierStub(channel).Describe(pb.DescribeRequest())) is Reason.NO_KEY
        assert await refused(stubs.BundlesStub(channel).Manifest(pb.ManifestRequest())) is Reason.NO_KEY
        fetch = stubs.BundlesStub(channel).Fetch(pb.FetchRequest())
        assert await refused(fetch.read()) is Reason.NO_KEY
        for key in (None, "x", new_secret("a")):
            async with calling(server.address, key) as talk:
                assert (await talk.refusal()).reason is Reason.NO_KEY


@pytest.mark.parametrize("scope", [Scope.SESSION, Scope.DESCRIBE, Scope.BUNDLE])
async def test_a_key_is_good_for_its_scopes_alone(keys_file, scope):
    metadata = (("authorization", f"Bearer {give(keys_file, 'a', scope)}"),)
    async with serving(keys_file) as server, grpc.aio.insecure_channel(server.address) as channel:
        verifier, bundles = stubs.VerifierStub(channel), stubs.BundlesStub(channel)
        calls = {
            Scope.DESCRIBE: lambda: verifier.Describe(pb.DescribeRequest(), metadata=metadata),
            Scope.BUNDLE: lambda: bundles.Manifest(pb.ManifestRequest(), metadata=metadata),
            Scope.SESSION: lambda: verifier.Session(metadata=metadata).read(),
        }
        for asked in calls.keys() - {scope}:
            assert await refused(calls[asked]()) is Reason.OUT_OF_SCOPE
        if scope is Scope.DESCRIBE:
            assert (await calls[scope]()).vocab_size == target().vocab_size


async def test_server_drafting_needs_its_scope(keys_file):
    key = give(keys_file, "a", Scope.SESSION)
    async with serving(keys_file) as server, calling(server.address, key) as talk:
        assert not (await talk.open(about(server))).server_draft
        await talk.send(Decode(1, 0, (), PROMPT[0], 5, tree=ServerTree(2, 2, 4)))
        assert (await talk.refusal()).reason is Reason.OUT_OF_SCOPE


async def test_a_session_is_unknown_to_other_keys(keys_file, truth):
    mine, other = give(keys_file, "me"), give(keys_file, "other")
    async with serving(keys_file) as server, calling(server.address, mine) as talk:
        opened = await talk.open(about(server))
        await talk.prompt(PROMPT)
        async with calling(server.address, other) as thief:
            got = await thief.open(about(server), session_id=opened.session_id, committed_len=len(PROMPT))
            assert (got.resumed, got.kept_len) == (False, 0)
            assert got.session_id != opened.session_id
        assert (await talk.verdict(len(PROMPT), (), truth[0])).bonus == truth[1]  # and nobody was disturbed
        async with calling(server.address, mine) as again:
            got = await again.open(about(server), session_id=opened.session_id, committed_len=len(PROMPT))
            assert (got.resumed, got.kept_len) == (True, len(PROMPT))


async def test_a_key_has_so_many_sessions_and_no_more(keys_file):
    key, other = give(keys_file, "a", sessions=1), give(keys_file, "b")
    async with serving(keys_file) as server:
        async with calling(server.address, key) as first:
            opened = await first.open(about(server))
            async with calling(server.address, key) as second:
                await second.send(open_frame(server))
                refusal = await second.refusal()
                assert (refusal.reason, refusal.retry_after_s) == (Reason.OVER_QUOTA, 5.0)
            async with calling(server.address, other) as another:
                assert await another.open(about(server))
            async with calling(server.address, key) as again:  # its own session may always be taken up
                assert (await again.open(about(server), session_id=opened.session_id)).resumed
                await again.send(Ping(1))
                assert await again.receive() == Pong(1)
                await again.end()
                assert await again.receive() is None
        async with calling(server.address, key) as new:  # the one that is parked makes room
            assert (await new.open(about(server))).session_id != opened.session_id


async def test_a_keys_context_is_what_it_is_told_and_held_to(keys_file, truth):
    key = give(keys_file, "a", max_context=20)
    async with serving(keys_file) as server:
        async with calling(server.address, key) as talk:
            assert (await talk.open(about(server))).max_context == 20
            verdicts = await talk.decode(0, PROMPT[:-1], PROMPT[-1], 1000)
            assert [verdict.bonus for verdict in verdicts] == truth[: 20 - len(PROMPT)]
            assert verdicts[-1].finish is Finish.CONTEXT_FULL
        async with joined(server, key) as talk:
            await talk.prompt(PROMPT)
            verdict = await talk.verdict(len(PROMPT), (), truth[0], DraftTree.chain(truth[1:30]))
            drafted = (truth[0], *truth[1 : 1 + len(verdict.path)], verdict.bonus)
            assert drafted == tuple(truth[: 20 - len(PROMPT)])
            assert verdict.finish is Finish.CONTEXT_FULL
        async with joined(server, key) as talk:
            await talk.draft(0, PROMPT + PROMPT, PROMPT[0])
            assert (await talk.refusal()).reason is Reason.CONTEXT_FULL


async def test_over_its_rate_a_key_is_refused_until_it_has_earned_more_and_its_session_is_kept(keys_file, truth):
    key, clock = give(keys_file, "a", tokens_per_minute=60), Clock()  # 1 a second, 10 at once
    async with serving(keys_file, clock, longest_wait_s=0) as server:
        async with calling(server.address, key) as talk:
            opened = await talk.open(about(server))
            assert (await talk.prompt(PROMPT)).bonus == truth[0]  # 12 rows: more than may be had at once
            await talk.draft(len(PROMPT), (), truth[0])
            refusal = await talk.refusal()
            assert (refusal.reason, refusal.retry_after_s) == (Reason.OVER_QUOTA, pytest.approx(2))
        clock.now += refusal.retry_after_s
        async with calling(server.address, key) as talk:
            again = await talk.open(about(server), session_id=opened.session_id, committed_len=len(PROMPT))
            assert (again.resumed, again.kept_len) == (True, len(PROMPT))
            assert (await talk.verdict(len(PROMPT), (), truth[0])).bonus == truth[1]


async def test_a_decode_over_its_rate_pauses_and_goes_on_with_the_same_text(keys_file):
    key, clock = give(keys_file, "a", tokens_per_minute=60), Clock()  # 1 a second, 10 at once
    async with serving(keys_file, clock) as server, joined(server, key) as talk:
        await talk.send(Decode(1, 0, PROMPT[:-1], PROMPT[-1], 100))
        verdicts = [await talk.receive() for _ in range(64)]  # the first step, which was paid at its start
        for _ in range(6000):
            if server.verifier._engine_loop._queues.num_paused:
                break
            await asyncio.sleep(0.01)
        assert server.verifier._engine_loop._queues.num_paused
        usage = server.verifier._quotas.of(Principal("a", quota=Quota(tokens_per_minute=60)))
        while verdicts[-1].finish is Finish.NOT_YET:
            clock.now += 100
            usage.settle(0)  # it looks at the clock again
            verdicts.append(await talk.receive())
    assert [verdict.bonus for verdict in verdicts] == plain_greedy(target(), PROMPT, 100)
    assert verdicts[-1].finish is Finish.LIMIT


async def test_a_revoked_key_ends_its_streams_and_nobody_elses(keys_file, truth, monkeypatch):
    monkeypatch.setattr(authenticator_module, "_LOOK_S", 0.01)
    mine, other = give(keys_file, "me"), give(keys_file, "other")
    async with serving(keys_file) as server, joined(server, mine) as talk:
        async with calling(server.address, other) as revoked:
            opened = await revoked.open(about(server))
            write_keys(keys_file, [read_keys(keys_file)["me"]])
            assert (await revoked.refusal()).reason is Reason.NO_KEY
        assert (await talk.prompt(PROMPT)).bonus == truth[0]
        key = give(keys_file, "other")
        server.authenticator._keyring.refresh()
        async with calling(server.address, key) as renamed:
            got = await renamed.open(about(server), session_id=opened.session_id)
            assert not got.resumed  # its sessions went with the old key


async def test_streams_that_say_nothing_leave_room_for_others(keys_file):
    key, heard = give(keys_file, "a"), asyncio.Event()
    async with serving(keys_file, unopened_streams=1) as server:
        count = server.authenticator.unopened.one_more
        server.authenticator.unopened.one_more = lambda caller: heard.set() or count(caller)
        async with calling(server.address, key) as one:
            silent = asyncio.create_task(one.receive())
            await heard.wait()
            async with calling(server.address, key) as other:
                assert (await other.refusal()).reason is Reason.SERVER_FULL
            await one.send(open_frame(server))
            assert (await silent).session_id
            async with calling(server.address, key) as late:
                assert await late.open(about(server))


async def test_a_key_is_in_no_log_and_no_status(keys_file, caplog, monkeypatch):
    """Every path that sees one, with everything logged: let in, wrong, out of scope, over its rate, failing inside."""
    caplog.set_level(logging.DEBUG)
    good, narrow, wrong = (
        give(keys_file, "a", tokens_per_minute=60),
        give(keys_file, "b", Scope.BUNDLE),
        new_secret("a"),
    )
    said = []
    async with serving(keys_file, Clock(), longest_wait_s=0) as server:
        for key in (good, narrow, wrong):
            async with calling(server.address, key) as talk:
                try:
                    await talk.open(about(server))
                    await talk.prompt(PROMPT)
                    await talk.draft(len(PROMPT), (), 1)
                except Exception as error:
                    said.append(repr(error))
                else:
                    said.append(repr(await talk.refusal()))
        monkeypatch.setattr(StreamReader, "_open", None)
        async with calling(server.address, good) as talk:
            await talk.send_message(pb.ClientFrame(open=pb.Open()))
            said.append(repr(await talk.refusal()))
    assert len(said) == 4
    everything = caplog.text + "".join(said) + repr(server.authenticator.security) + repr(server.authenticator.__dict__)
    for key in (good, narrow, wrong):
        assert key not in everything
        assert key.rpartition(".")[2] not in everything
        assert digest_of(key).hex() not in everything


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


def over_tls(folder, **more) -> Server:
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
    async with over_tls(folder) as server, calling(server.address, credentials=trusting(folder)) as talk:
        assert (await talk.open(server.verifier.describe())).session_id
        assert await describes(server, trusting(folder), ("grpc.ssl_target_name_override", "server.example"))
        assert not await describes(server, trusting(folder), ("grpc.ssl_target_name_override", "other.example"))


async def test_a_renewed_certificate_is_used_for_the_next_connection(folder):
    async with over_tls(folder) as server, calling(server.address, credentials=trusting(folder)) as talk:
        await talk.open(server.verifier.describe())
        other = certs.new_authority(9)
        issue(folder, certs.new_server_certificate(other, HOSTS, 9), "server")
        assert not await describes(server, trusting(folder))
        issue(folder, other, "ca")
        assert await describes(server, trusting(folder))
        (folder / "server.pem").write_text("half a file")  # as it may be while somebody copies: the old one stays
        assert await describes(server, trusting(folder))
        assert (await talk.decode(0, (), 1, 1))[0].bonus is not None  # streams that are open know nothing of it


async def test_only_clients_with_a_certificate_connect_and_it_names_them(folder):
    seen = []
    server = over_tls(folder, client_ca=folder / "ca.pem")
    admit = server.authenticator.admit
    server.authenticator.admit = lambda *args: seen.append(admit(*args)) or seen[-1]
    async with server:
        assert await describes(server, trusting(folder, "phone"))
        assert not await describes(server, trusting(folder))
        issue(folder, certs.new_client_certificate(certs.new_authority(9), "phone", 9), "phone")
        assert not await describes(server, trusting(folder, "phone"))
    assert [principal.payer for principal in seen] == ["cert:phone"]


async def test_a_connection_that_says_nothing_is_ended(folder):
    async with over_tls(folder, handshake_s=0.2) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


async def test_headers_have_a_size(folder):
    async with over_tls(folder) as server, grpc.aio.secure_channel(server.address, trusting(folder)) as channel:
        call = stubs.VerifierStub(channel).Describe(pb.DescribeRequest(), metadata=(("x", "y" * 20_000),))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        small = stubs.VerifierStub(channel).Describe(pb.DescribeRequest(), metadata=(("x", "y" * 4000),))
        assert (await small).vocab_size
