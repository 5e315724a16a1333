"""The real gRPC server on a free port: sessions, refusals with details, garbage, health, reflection, its life; and what
the channel options of both sides promise each other."""

import asyncio
import contextlib
import resource
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from talk import PROMPT, TAP, Talk, calling
from tiny_targets import target

from outrider_client.connection.grpc_transport import CHANNEL_OPTIONS
from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import Reason, Refusal
from outrider_proto.feature_codec import decode_rows, encode_rows
from outrider_proto.frames import Codec, Decode, Draft, Features, Verdict
from outrider_proto.status import error_from_rpc
from outrider_proto.tree import DraftTree
from outrider_proto.wire import MAX_FRAME_BYTES
from outrider_server.config.config import LimitsConfig, SecurityConfig
from outrider_server.rpc.server import SERVER_OPTIONS, Server
from outrider_server.rpc.service import VerifierService
from outrider_server.security.authenticator import Authenticator
from outrider_server.sessions.verifier import Verifier


@asynccontextmanager
async def serving(**limits):
    async with Server(Verifier(target(), [TAP], LimitsConfig(**limits))) as server:
        yield server


@asynccontextmanager
async def session(server: Server, **changes):
    async with calling(server.address) as talk:
        await talk.open(server.verifier.describe(), **changes)
        yield talk


async def answer(talk: Talk, truth: list[int]) -> None:
    """A prompt and one draft, as any healthy session goes."""
    assert (await talk.prompt(PROMPT)).bonus == truth[0]
    verdict = await talk.verdict(len(PROMPT), (), truth[0], DraftTree.chain(truth[1:5]))
    assert (len(verdict.path), verdict.bonus) == (4, truth[5])


@pytest.mark.parametrize("asked", [Draft, Decode])
async def test_a_request_says_how_its_own_features_are_coded(asked):
    async with serving() as server, session(server, tap=TAP.info.fingerprint, codec="float32") as talk:
        exact, coarse, again = [await features_of(talk, asked, codec) for codec in (None, "leaner", None)]
    assert [features.codec for features in (exact, coarse, again)] == ["float32", "leaner", "float32"]
    assert np.array_equal(exact.rows, again.rows)
    assert np.array_equal(coarse.rows, decode_rows(encode_rows(exact.rows, "leaner"), "leaner", *exact.rows.shape))


async def features_of(talk: Talk, asked: type[Draft] | type[Decode], codec: Codec | None) -> Features:
    """Of the prompt."""
    talk.seq += 1
    more = {"tree": DraftTree()} if asked is Draft else {"max_tokens": 1}
    context, root = tuple(PROMPT[:-1]), PROMPT[-1]
    await talk.send(asked(talk.seq, 0, context, root, features_from=0, codec=codec, **more))
    while not isinstance(frame := await talk.receive(), Features):
        pass
    return frame


async def test_health_and_reflection():
    async with serving() as server, grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "outrider.v1.Verifier"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await call.read()).list_services_response.service}
        assert {"outrider.v1.Verifier", "grpc.health.v1.Health"} <= names
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
GARBAGE = {"no message": b"\xff\xff\xff\x07x", "a long name": b"\x0a\x80\x80\x20" + b"x" * (1 << 19)}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize(
    "method",
    [
        "/outrider.v1.Verifier/Describe",
        "/outrider.v1.Bundles/Manifest",
        "/outrider.v1.Bundles/Fetch",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        REFLECTION,
    ],
)
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_what_is_no_request_is_refused_without_a_traceback_and_counted_by_address(
    method, data, compression, caplog
):
    authenticator = Authenticator(SecurityConfig(failures_per_minute=2))
    server = Server(Verifier(target(), [TAP]), authenticator=authenticator)
    async with server, grpc.aio.insecure_channel(server.address, compression=compression) as channel:
        reasons = []
        for _ in range(3):
            call = channel.stream_stream(method)(iter([data]))
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                assert await call.read() is grpc.aio.EOF
            reasons.append(error_from_rpc(failed.value).reason)
        first = Reason.FRAME_TOO_LARGE if len(data) > 9 else Reason.MALFORMED_FRAME
        assert reasons == [first, first, Reason.OVER_QUOTA]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "method", ["/outrider.v1.Verifier/Nothing", "/a.B/C", "/grpc.channelz.v1.Channelz/GetTopChannels"]
)
async def test_a_method_that_is_none_is_refused_and_counted_by_address(method):
    server = Server(Verifier(target(), [TAP]), authenticator=Authenticator(SecurityConfig(failures_per_minute=2)))
    async with server, grpc.aio.insecure_channel(server.address) as channel:
        codes = []
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary(method)(b"\xff")
            codes.append(failed.value.code().name)
    assert codes == ["UNIMPLEMENTED", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"]


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


async def test_connections_leave_the_process_descriptors_and_a_session_goes_on(monkeypatch):
    """Of 40 connections 24 descriptors allow half as many; gRPC hangs up on the others."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (24, 24))
    async with serving() as server, calling(server.address) as talk, contextlib.AsyncExitStack() as held:
        await talk.open(server.verifier.describe())
        readers = []
        for _ in range(40):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            held.callback(writer.close)
            writer.write(PREFACE)
            readers.append(asyncio.ensure_future(until_closed(reader)))
        async with asyncio.timeout(60):
            await asyncio.gather(*readers[11:])
        assert not any(reader.done() for reader in readers[:11])
        await talk.send(Decode(1, 0, PROMPT[:-1], PROMPT[-1], 1))
        assert isinstance(await talk.receive(), Verdict)
        for reader in readers:
            reader.cancel()


async def until_closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1000):
            pass


async def test_a_watch_of_no_service_is_answered_and_ended_and_the_others_are_bounded():
    async with serving() as server, grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        unknown = health.Watch(health_pb2.HealthCheckRequest(service="x" * 1000))
        assert [reply.status async for reply in unknown] == [health_pb2.HealthCheckResponse.SERVICE_UNKNOWN]
        watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(64)]
        for watch in watches:
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        for more in (health.Watch(health_pb2.HealthCheckRequest()), channel.stream_stream(REFLECTION)(iter([b""]))):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await more.read()
            assert error_from_rpc(failed.value).reason is Reason.SERVER_FULL


def draft(**fields) -> pb.ClientFrame:
    fields = {"seq": 1, "root": 5, "context": b"\x03\0\0"} | fields
    return pb.ClientFrame(draft=pb.Draft(**fields))


BAD_FRAMES = [
    (pb.ClientFrame(), Reason.MALFORMED_FRAME),
    (draft(tokens=b"\x03\0\0", parents=b"\x01"), Reason.MALFORMED_TREE),  # its own parent
    (draft(tokens=b"\x03\0\0\x03\0\0", parents=b"\x00\x00"), Reason.MALFORMED_TREE),  # twins
    (draft(tokens=b"\xff\xff\xff", parents=b"\x00"), Reason.TOKEN_OUT_OF_VOCABULARY),
    (draft(tokens=bytes([5, 0, 0] * 30), parents=bytes(range(30))), Reason.TREE_TOO_LARGE),
    (draft(base_len=9), Reason.BAD_SEQUENCE),
    (draft(context=b"\x03\0\0" * 5000), Reason.CONTEXT_FULL),
    (draft(context=b"\x03\0\0" * (MAX_FRAME_BYTES // 3)), Reason.FRAME_TOO_LARGE),
    (draft(context=b"\x03\0\0" * (5 * MAX_FRAME_BYTES // 3)), Reason.FRAME_TOO_LARGE),
]


@pytest.mark.parametrize(("message", "reason"), BAD_FRAMES, ids=lambda value: getattr(value, "name", ""))
async def test_a_bad_frame_gets_its_reason_and_others_are_served_on(message, reason, truth):
    async with serving(max_nodes=20) as server, session(server) as other, session(server) as bad:
        await bad.send_message(message)
        assert (await bad.refusal()).reason is reason
        await answer(other, truth)


async def test_streams_that_nobody_reads_shut_out_their_own_address_alone():
    verifier = Verifier(target())
    service, listening = VerifierService(verifier, Authenticator()), grpc.aio.server()
    listening.add_generic_rpc_handlers((service.handler(),))
    address = f"127.0.0.1:{listening.add_insecure_port('127.0.0.1:0')}"
    await verifier.start()
    await listening.start()
    try:
        service._unread["203.0.113.1"] = 500  # whoever that is: more than one address may have
        async with calling(address) as talk:
            assert (await talk.open(verifier.describe())).session_id
        service._unread["127.0.0.1"] = 500
        async with calling(address) as talk:
            with pytest.raises(Refusal, match="not read"):
                await talk.open(verifier.describe())
    finally:
        await verifier.stop()
        await listening.stop(None)


def test_each_side_takes_the_largest_frame_that_the_other_may_send():
    client, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    assert client["grpc.max_send_message_length"] <= server["grpc.max_receive_message_length"]
    assert client["grpc.max_receive_message_length"] > MAX_FRAME_BYTES  # with the envelope
    assert server["grpc.max_send_message_length"] > MAX_FRAME_BYTES


def test_a_vanished_client_is_noticed_in_the_same_time_behind_a_proxy():
    options = dict(SERVER_OPTIONS)
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"]


def test_a_client_may_ping_as_often_as_it_likes():
    assert dict(SERVER_OPTIONS)["grpc.http2.max_ping_strikes"] == 0
