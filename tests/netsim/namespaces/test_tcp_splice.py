"""Splices on loopback sockets of this namespace: what enters on one side leaves unchanged on the other."""

import asyncio
import contextlib
import socket
import struct

import pytest
from echoing import connected, echo, serving

from outrider_netsim.core.small_buffers import BUFFER_BYTES
from outrider_netsim.namespaces.tcp_splice import TcpSplice, dial_locally, local_listener


def port(splice):
    return splice._listener.getsockname()[1]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_the_wildcard_of_ipv6_takes_ipv4_too():
    with local_listener("::", 0) as listener:
        listener.listen()
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5).close()


@contextlib.asynccontextmanager
async def through_two(handler=echo):
    """Put two splices in a row before a server with `handler`; give the first one and its address."""
    async with asyncio.timeout(30), serving(handler) as server:
        far = TcpSplice(local_listener("127.0.0.1", 0), lambda _: dial_locally(*server))
        near = TcpSplice(local_listener("127.0.0.1", 0), lambda _: dial_locally("127.0.0.1", port(far)))
        await far.start()
        await near.start()
        try:
            yield near
        finally:
            await near.aclose()
            await far.aclose()


async def test_small_writes_are_not_held_back():
    """Sockets not created by asyncio keep Nagle's algorithm, with which every second small write waits for an ACK."""
    async with through_two() as splice, connected(f"127.0.0.1:{port(splice)}") as (reader, writer):
        writer.write(b"one")
        await reader.readexactly(3)
        legs = [end._transport.get_extra_info("socket") for end in splice._ends]
        assert legs
        assert all(leg.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for leg in legs)


async def test_the_end_of_one_way_leaves_the_other_open():
    async def answer_after_the_end(reader, writer):
        writer.write(await reader.read(-1))
        writer.write_eof()
        writer.close()

    async with through_two(answer_after_the_end) as splice, connected(f"127.0.0.1:{port(splice)}") as (reader, writer):
        writer.write(b"all")
        writer.write_eof()
        assert await reader.read(-1) == b"all"


def reset(writer):
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def test_a_reset_by_the_server_reaches_the_client():
    async def rude(reader, writer):
        await reader.readexactly(1)
        reset(writer)

    async with through_two(rude) as splice, connected(f"127.0.0.1:{port(splice)}") as (reader, writer):
        writer.write(b"xy")
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)


async def test_a_reset_by_the_client_reaches_the_server():
    ended = asyncio.get_running_loop().create_future()

    async def read_on(reader, writer):
        writer.write(b"x")
        try:
            ended.set_result(await reader.read(-1))
        except ConnectionResetError as error:
            ended.set_exception(error)
        writer.close()

    async with through_two(read_on) as splice:
        async with connected(f"127.0.0.1:{port(splice)}") as (_, writer):
            writer.write(b"x")
            reset(writer)
        with pytest.raises(ConnectionResetError):
            await ended


async def test_a_sender_is_held_back_while_the_other_side_does_not_read():
    may_read = asyncio.Event()
    size = 400 * BUFFER_BYTES  # more than all socket buffers on the way hold

    async def late(reader, writer):
        await may_read.wait()
        writer.write(str(len(await reader.read(-1))).encode())
        writer.write_eof()
        writer.close()

    async with through_two(late) as splice, connected(f"127.0.0.1:{port(splice)}") as (reader, writer):
        writer.write(bytes(size))
        writer.write_eof()
        sending = asyncio.create_task(writer.drain())
        for _ in range(200):  # rounds of the loop: all that can move has moved
            await asyncio.sleep(0)
        assert not sending.done()
        may_read.set()
        assert await reader.read(-1) == str(size).encode()
        await sending


async def test_closing_resets_what_is_open_and_leaves_no_task():
    before = asyncio.all_tasks()
    async with through_two() as splice, connected(f"127.0.0.1:{port(splice)}") as (reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        await splice.aclose()
        await splice.aclose()
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
    await asyncio.gather(*(asyncio.all_tasks() - before))  # the echo server's own


async def test_closing_while_it_dials_gives_up():
    dialling = asyncio.Event()

    async def never(_client):
        dialling.set()
        await asyncio.Event().wait()

    splice = TcpSplice(local_listener("127.0.0.1", 0), never)
    await splice.start()
    async with connected(f"127.0.0.1:{port(splice)}") as (reader, _):
        await dialling.wait()
        await splice.aclose()
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)


@pytest.mark.parametrize("iterations", range(5))
async def test_who_connects_while_it_closes_is_reset(iterations):
    """Whichever step of accepting is under way: queued in the kernel, accepted, joined to nothing yet, joined."""
    async with through_two() as splice:
        with socket.create_connection(("127.0.0.1", port(splice)), timeout=5) as client:
            for _ in range(iterations):
                await asyncio.sleep(0)
            await splice.aclose()
            with pytest.raises(ConnectionResetError):
                await asyncio.to_thread(client.recv, 1)
