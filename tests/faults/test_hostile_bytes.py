"""What is not gRPC, or is no more than half of it, on the server's port: another client's answers go on."""

import asyncio
import contextlib
import struct

import pytest
from stage import answer, client, plain, server, until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 0, 1, 3, 4, 9  # RFC 9113, section 6
END_HEADERS = 4
NUM_RESETS = 10_000
MANY = 200


def frame(kind: int, payload: bytes, stream: int = 0, flags: int = 0) -> bytes:
    """RFC 9113, section 4.1."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    """RFC 7541, section 6.2.2: a literal, not indexed, not compressed; both shorter than 127 bytes."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


CALL = b"".join(
    header(*pair)
    for pair in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/outrider.v1.Verifier/Session"),
        (b":authority", b"anybody"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)
HELLO = PREFACE + frame(SETTINGS, b"")
TLS_HELLO = bytes.fromhex("16030100f8010000f40303") + bytes(240)
HOSTILE = {
    "garbage": bytes(range(256)) * 200,
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: anybody\r\n\r\n" * 50,
    "a TLS hello": TLS_HELLO,
    "half a preface": PREFACE[:9],
    "a frame without end": HELLO + b"\xff\xff\xff" + bytes([DATA, 0, 0, 0, 0, 1]) + bytes(100_000),
    "headers without end": HELLO
    + frame(HEADERS, CALL, 1)
    + frame(CONTINUATION, header(b"x" * 100, b"y" * 100) * 60, 1) * 300,
    "headers that are none": HELLO + frame(HEADERS, b"\xff" * 200, 1, END_HEADERS),
    "data without headers": HELLO + frame(DATA, b"\0\0\0\0\x05hello", 1),
    "a message that is longer than it may be": HELLO
    + frame(HEADERS, CALL, 1, END_HEADERS)
    + frame(DATA, b"\0\xff\xff\xff\xff" + bytes(1000), 1),
    "a message that says it is compressed": HELLO
    + frame(HEADERS, CALL, 1, END_HEADERS)
    + frame(DATA, b"\x01\0\0\0\x05hello", 1),
    "a message that is no frame": HELLO + frame(HEADERS, CALL, 1, END_HEADERS) + frame(DATA, b"\0\0\0\0\x05hello", 1),
}


@pytest.fixture
async def running():
    async with server() as it:
        yield it


@contextlib.asynccontextmanager
async def connected(running):
    reader, writer = await asyncio.open_connection(running.host, running.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def throw(writer, data: bytes) -> None:
    """As much of it as the server takes."""
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        async with asyncio.timeout(60):
            await writer.drain()


@pytest.mark.parametrize("what", list(HOSTILE))
async def test_hostile_bytes_hold_up_nobody(running, what):
    async with connected(running) as (_, writer):
        await throw(writer, HOSTILE[what])
        async with client(running.address) as mine:
            assert await answer(mine) == plain()
    await until(lambda: not running.verifier._streams, "no stream")


async def test_bytes_that_trickle_hold_up_nobody(running):
    """Many connections that stop in the middle of a preface, of headers, of a message."""
    beginnings = [
        PREFACE[:5],
        HELLO,
        HELLO + frame(HEADERS, CALL, 1)[:30],
        HELLO + frame(HEADERS, CALL, 1, END_HEADERS),
    ]
    async with contextlib.AsyncExitStack() as stack:
        for number in range(MANY):
            _, writer = await stack.enter_async_context(connected(running))
            await throw(writer, beginnings[number % len(beginnings)])
        async with client(running.address) as mine:
            for _ in range(3):
                assert await answer(mine) == plain()
    await until(lambda: not running.verifier._streams, "no stream")


async def test_ten_thousand_streams_that_are_reset_at_once_leave_nothing(running):
    """HTTP/2 rapid reset (CVE-2023-44487)."""
    most = 0
    async with connected(running) as (reader, writer), client(running.address) as mine:
        assert await answer(mine) == plain()
        await throw(writer, HELLO)
        reading = asyncio.create_task(reader.read(-1))
        for first in range(1, 2 * NUM_RESETS, 200):
            streams = range(first, first + 200, 2)
            await throw(
                writer,
                b"".join(
                    frame(HEADERS, CALL, stream, END_HEADERS) + frame(RST_STREAM, bytes(4), stream)
                    for stream in streams
                ),
            )
            most = max(most, len(running.verifier._streams))
        assert await answer(mine) == plain()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await until(lambda: not running.verifier._streams, "no stream")
    assert most <= 4 * running.verifier._limits.max_sessions
