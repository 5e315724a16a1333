"""The proxy engine on real sockets: bytes both ways, outages, resets, backpressure, clean shutdown."""

import asyncio
import contextlib
import random
import sys
import time

import pytest

from outrider_netsim.profile import Direction, Profile, ProfileError, profile_named
from outrider_netsim.proxy import ProxyLink
from outrider_netsim.relay import BUFFER_BYTES

FAST = Profile.symmetric("fast", Direction(delay_ms=0.5, jitter_ms=0.5, distribution="normal"))
SILENCE_S = 0.1  # long against FAST


async def echo(reader, writer):
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    writer.close()


@contextlib.asynccontextmanager
async def linked(profile=FAST, handler=echo, seed=1):
    """A server with `handler` behind a ProxyLink."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(20), ProxyLink(*server.sockets[0].getsockname(), profile, seed) as link:
            yield link
    finally:
        server.close()


@contextlib.asynccontextmanager
async def connected(link):
    host, port = link.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def silent(reader, size=1):
    """Whether nothing comes for a while; must not lose what does come."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SILENCE_S):
            assert not await reader.read(size)
            return False
    return True


async def test_bytes_pass_both_ways_intact():
    sent = random.Random(1).randbytes(1_000_000)
    async with linked(profile_named("lan")) as link, connected(link) as (reader, writer):
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent
        assert link.stats.up.bytes == link.stats.down.bytes == len(sent)
        assert link.stats.up.chunks >= len(sent) / 1448
        assert link.stats.connections == 1


async def test_a_round_trip_takes_the_links_time():
    async with linked(Profile.symmetric("slow", Direction(delay_ms=20))) as link, connected(link) as (reader, writer):
        started_at = time.monotonic()
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        first = time.monotonic()
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        assert first - started_at >= 0.078  # handshake and message, less half a tick each way
        assert time.monotonic() - first >= 0.039


async def test_a_cut_link_is_silent_and_loses_nothing():
    async with linked() as link, connected(link) as (reader, writer):
        writer.write(b"before ")
        assert await reader.readexactly(7) == b"before "
        link.cut()
        assert link.is_cut
        writer.write(b"during ")
        assert await silent(reader)
        link.restore()
        writer.write(b"after")
        assert await reader.readexactly(12) == b"during after"


async def test_cut_and_restore_may_be_repeated():
    async with linked() as link, connected(link) as (reader, writer):
        link.restore()
        link.cut()
        link.cut()
        link.restore()
        link.restore()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel accepts connections on a cut link")
async def test_a_new_connection_hangs_while_the_link_is_cut():
    async with linked() as link:
        link.cut()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SILENCE_S), connected(link):
                pass
        link.restore()
        async with connected(link) as (reader, writer):
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"


async def test_a_connection_waiting_through_an_outage_opens_after_it():
    async with linked() as link:
        link.cut()
        waiting = asyncio.create_task(one_echo(link))
        await asyncio.sleep(SILENCE_S)
        assert not waiting.done()
        link.restore()
        assert await waiting == b"x"  # when the kernel sends its next SYN, a second after the first


async def one_echo(link):
    async with connected(link) as (reader, writer):
        writer.write(b"x")
        return await reader.readexactly(1)


async def test_a_profile_set_midway_holds_from_then_on():
    async with linked(Profile.symmetric("slow", Direction(delay_ms=30))) as link, connected(link) as (reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        link.set(Profile.symmetric("faster", Direction(delay_ms=5)))
        started_at = time.monotonic()
        writer.write(b"x")
        await reader.readexactly(1)
        assert 0.009 <= time.monotonic() - started_at < 0.055


async def test_a_sender_is_held_back_when_the_link_is_cut():
    async with linked() as link, connected(link) as (reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        link.cut()
        sending = asyncio.create_task(send_all(writer, bytes(40 * BUFFER_BYTES)))
        await asyncio.sleep(SILENCE_S)
        assert not sending.done()
        sending.cancel()
        writer.transport.abort()


async def send_all(writer, data):
    writer.write(data)
    await writer.drain()


async def test_a_reset_by_the_server_reaches_the_client():
    async def rude(reader, writer):
        await reader.read(1)
        writer.transport.abort()

    async with linked(handler=rude) as link, connected(link) as (reader, writer):
        writer.write(b"xy")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_a_dead_server_resets_and_the_link_serves_on():
    async with linked() as link:
        async with ProxyLink("127.0.0.1", 1, FAST) as dead, connected(dead) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        assert await one_echo(link) == b"x"


async def test_closing_with_connections_open_leaves_no_task():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    before = asyncio.all_tasks()
    link = ProxyLink(*server.sockets[0].getsockname(), FAST)
    await link.start()
    async with connected(link) as (reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        link.cut()
        await link.aclose()
        await link.aclose()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    server.close()
    async with asyncio.timeout(5):
        await asyncio.gather(*(asyncio.all_tasks() - before))  # the echo server's own


@pytest.mark.parametrize(("upstream", "port"), [(0, 0), (70_000, 0), (1, -1)])
def test_impossible_ports_are_refused(upstream, port):
    with pytest.raises(ProfileError, match="port="):
        ProxyLink("127.0.0.1", upstream, FAST, port=port)


def test_a_link_that_was_not_started_says_so():
    with pytest.raises(RuntimeError, match="not started"):
        ProxyLink("127.0.0.1", 1, FAST).cut()
