"""Clients that ask and do not read: what waits for them is bounded, others go on, and then their stream ends."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
from stage import PROMPT, answer, client, plain, server, until

from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Features, Open, Ping
from outrider_proto.tree import DraftTree
from outrider_proto.wire import client_frame_to_proto
from outrider_server.sessions.stream_writer import (
    _MAX_REQUESTS,
    _MAX_UNREAD_BYTES,
    _MAX_WAITING_FRAMES,
    ROOM_BYTES,
    StreamWriter,
)

from ..marks import slow

NUM_FRAMES = 3000
LONG = tuple(range(3, 203))
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]


def frames_of(kind: str):
    match kind:
        case "pings":
            return (Ping(nonce) for nonce in range(NUM_FRAMES))
        case "drafts":
            return (Draft(seq, 0, LONG[:-1], LONG[-1], DraftTree()) for seq in range(1, NUM_FRAMES))
        case "decodes":
            return (Decode(seq, 0, PROMPT[:-1], PROMPT[-1], 400, features_from=0) for seq in range(1, NUM_FRAMES))


@asynccontextmanager
async def deaf(running):
    """A stream that sends as much as it is let, and reads no frame."""
    about = running.verifier.describe()
    hello = Open(
        about.protocol_version,
        about.target_fingerprint,
        about.tokenizer_fingerprint,
        tap=about.taps[0].fingerprint,
        codec="float32",
    )
    async with grpc.aio.insecure_channel(running.address, options=SMALL_WINDOW) as channel:
        call = channel.stream_stream(
            "/outrider.v1.Verifier/Session", pb.ClientFrame.SerializeToString, pb.ServerFrame.FromString
        )()
        await call.write(client_frame_to_proto(hello))

        async def shout(kind: str) -> None:
            for frame in frames_of(kind):
                await call.write(client_frame_to_proto(frame))

        yield shout


@pytest.mark.parametrize("kind", ["decodes", *slow("pings", "drafts")])
async def test_a_client_that_never_reads_is_bounded_and_then_ended(kind):
    most = {"frames": 0, "bytes": 0, "requests": 0}
    async with server(stall_s=2.0) as running, deaf(running) as shout:
        shouting = asyncio.create_task(shout(kind))
        await until(lambda: running.verifier._streams, "a stream")
        (stream,) = running.verifier._streams

        def look() -> bool:
            most["frames"] = max(most["frames"], len(stream._frames) + len(stream._features))
            most["bytes"] = max(most["bytes"], stream.waiting_bytes)
            most["requests"] = max(most["requests"], len(stream._requests))
            return not running.verifier._streams

        async with client(running.address) as other:
            for _ in range(3):
                assert await answer(other) == plain()
                look()
        await until(lambda: look() or len(running.verifier._streams) == 0, "the end of the stream")
        assert len(running.verifier._sessions) == 1  # parked: it may resume
        shouting.cancel()
        await asyncio.gather(shouting, return_exceptions=True)
    assert most["requests"] <= _MAX_REQUESTS
    assert most["bytes"] <= ROOM_BYTES
    assert (
        most["frames"] <= _MAX_WAITING_FRAMES + _MAX_REQUESTS * 410
    )  # what was asked for before it was not listened to


async def test_a_client_that_says_nothing_is_ended():
    async with server(stall_s=0.05) as running, grpc.aio.insecure_channel(running.address) as channel:
        call = channel.stream_stream("/outrider.v1.Verifier/Session")()
        async with asyncio.timeout(60):
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert "no Open within" in await call.details()
        await until(lambda: not running.verifier._streams, "no stream")


def rows(num_bytes: int) -> Features:
    return Features(1, 0, np.zeros((num_bytes // 1024, 256), np.float32), last=False)


async def test_more_than_a_reader_would_let_wait_ends_the_stream():
    stream = StreamWriter()
    for _ in range(ROOM_BYTES // _MAX_UNREAD_BYTES):
        stream.send(rows(_MAX_UNREAD_BYTES - 1024))
    assert not stream.is_ending
    stream.send(rows(1024 * 1024))
    assert stream.is_ending
    assert stream.waiting_bytes == 0
    with pytest.raises(Refusal) as refused:
        await anext(stream.frames())
    assert refused.value.reason is Reason.STALLED


async def test_streams_without_open_give_way_to_those_who_come():
    """However many there are, from however many addresses: an answer is written beside them."""
    async with server(max_sessions=1) as running, grpc.aio.insecure_channel(running.address) as channel:
        calls = [channel.stream_stream("/outrider.v1.Verifier/Session")() for _ in range(4)]
        await until(lambda: len(running.verifier._streams) == 4, "four streams")
        async with client(running.address) as other:
            assert await answer(other) == plain()
        await until(lambda: any(call.done() for call in calls), "the end of the oldest")
        (ended,) = [call for call in calls if call.done()]
        assert await ended.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
