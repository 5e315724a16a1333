"""The proxy engine on real sockets: bytes both ways, outages, resets, backpressure, clean shutdown."""

import asyncio
import contextlib
import random
import socket

import pytest
from echoing import connected, echo, serving

from outrider_netsim.core.addresses import Address
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.proxy import ProxyLink
from outrider_netsim.profiles.profile import Direction, Profile

FAST = Profile.symmetric("fast", Direction(delay_ms=0.5, jitter_ms=0.5, distribution="normal"))


@contextlib.asynccontextmanager
async def linked(profile=FAST, handler=echo, seed=1):
    """A server with `handler` behind a ProxyLink."""
    async with asyncio.timeout(20), serving(handler) as server, ProxyLink(LinkPlan(profile, server, seed)) as link:
        yield link


async def one_echo(link):
    async with connected(link.address) as (reader, writer):
        writer.write(b"x")
        return await reader.readexactly(1)


async def test_a_reset_by_the_server_reaches_the_client():
    async def rude(reader, writer):
        await reader.read(1)
        writer.transport.abort()

    async with linked(handler=rude) as link, connected(link.address) as (reader, writer):
        writer.write(b"xy")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_a_dead_server_resets_and_the_link_serves_on():
    async with linked() as link:
        async with ProxyLink(LinkPlan(FAST, Address("127.0.0.1", 1))) as dead, connected(dead.address) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        assert await one_echo(link) == b"x"


async def test_closing_with_connections_open_leaves_no_task():
    async with serving() as server:
        before = asyncio.all_tasks()
        link = ProxyLink(LinkPlan(FAST, server))
        await link.start()
        async with connected(link.address) as (reader, writer):
            writer.write(b"x")
            await reader.readexactly(1)
            link.cut()
            await link.aclose()
            await link.aclose()
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        async with asyncio.timeout(5):
            await asyncio.gather(*(asyncio.all_tasks() - before))  # the echo server's own


@pytest.mark.parametrize("iterations", range(5))
async def test_who_connects_while_it_closes_is_not_left_hanging(iterations):
    """Whichever step of accepting is under way."""
    async with linked() as link:
        host, _, port = link.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as client:
            for _ in range(iterations):
                await asyncio.sleep(0)
            await link.aclose()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""


async def test_a_client_that_goes_away_resets_the_server():
    gone = asyncio.Event()

    async def endless(reader, writer):
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(10_000))
                await writer.drain()
        gone.set()
        writer.close()

    async with linked(handler=endless) as link:
        async with connected(link.address) as (reader, writer):
            await reader.readexactly(100_000)
            writer.transport.abort()
        await gone.wait()


async def test_a_slow_reader_holds_the_sender_back():
    sent = 0

    async def eager(reader, writer):
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            while sent < 200_000_000:
                writer.write(bytes(100_000))
                await writer.drain()
                sent += 100_000
        writer.close()

    async with linked(handler=eager) as link, connected(link.address) as (reader, _):
        await reader.readexactly(1)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 50_000_000  # buffers of kernels and loops
        async with asyncio.timeout(5):
            await link.aclose()  # does not wait for the reader


async def test_a_full_queue_drops_and_everything_arrives():
    narrow = Profile.symmetric("narrow", Direction(delay_ms=5, rate_bps=20e6, queue_packets=10))
    sent = random.Random(2).randbytes(500_000)
    async with linked(narrow) as link, connected(link.address) as (reader, writer):
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent
        assert link.stats.up.dropped_by_queue > 0
        assert link.stats.up.packets_in > 500_000 / 1448 + 5
