"""The channel options of both sides: what they promise each other, and pings as often as a client likes."""

import asyncio
import struct

import grpc
import pytest

from outrider_client.connection.grpc_transport import CHANNEL_OPTIONS
from outrider_proto.wire import MAX_FRAME_BYTES
from outrider_server.rpc.server import SERVER_OPTIONS

SETTINGS, PING, GOAWAY = 4, 6, 7  # RFC 9113, section 6
NUM_PINGS = 20


def test_no_option_is_given_twice():
    for options in (CHANNEL_OPTIONS, SERVER_OPTIONS):
        names = [name for name, _ in options]
        assert len(names) == len(set(names))


def test_each_side_takes_the_largest_frame_that_the_other_may_send():
    client, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    assert client["grpc.max_send_message_length"] <= server["grpc.max_receive_message_length"]
    assert client["grpc.max_receive_message_length"] > MAX_FRAME_BYTES  # with the envelope
    assert server["grpc.max_send_message_length"] > MAX_FRAME_BYTES


def test_a_vanished_client_is_noticed_in_the_same_time_behind_a_proxy():
    options = dict(SERVER_OPTIONS)
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"]


@pytest.mark.parametrize(("options", "is_told"), [(SERVER_OPTIONS, False), ([], True)])
async def test_a_client_may_ping_as_often_as_it_likes(options, is_told):
    """A server without our options ends the connection: ENHANCE_YOUR_CALM, too_many_pings."""
    server = grpc.aio.server(options=list(options))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with asyncio.timeout(20):
            assert await is_told_off(port) is is_told
    finally:
        await server.stop(None)


async def is_told_off(port):
    """Whether NUM_PINGS pings without data end in a GOAWAY rather than in as many answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, b""))
    answered = 0
    try:
        while answered < NUM_PINGS:
            writer.write(frame(PING, answered.to_bytes(8, "big")))
            while (kind := await next_kind(reader)) != PING:
                if kind == GOAWAY:
                    return True
            answered += 1
        return False
    finally:
        writer.close()
        await writer.wait_closed()


def frame(kind, payload):
    """RFC 9113, section 4.1: length, type, no flags, stream 0."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, 0, 0) + payload


async def next_kind(reader):
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3], "big"))
    return head[3]
