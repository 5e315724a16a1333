"""The real tun engine: what TCP and UDP see of the link, and that it leaves nothing behind."""

import asyncio
import contextlib
import csv
import socket
import statistics
import sys
from collections import Counter

import pytest
from echoing import connected, serving
from pcapng_reader import read_pcapng

from outrider_netsim.core.addresses import Address
from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_netsim.engines import namespace_link
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.engines.tun import TunLink
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.recording.pcapng import INBOUND, OUTBOUND
from outrider_netsim.recording.recorder import RecordingFiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TUN devices here are Linux's")

FAST = Profile.symmetric("fast", Direction(delay_ms=0.5))
NOWHERE = Address("127.0.0.1", 1)


@contextlib.asynccontextmanager
async def linked(profile=FAST, seed=1, **options):
    """An echo server behind a TunLink."""
    async with asyncio.timeout(60), serving() as server:
        link = TunLink(LinkPlan(profile, server, seed, **options))
        try:
            try:
                await link.start()
            except EngineError as error:
                pytest.skip(str(error))
            yield link
        finally:
            await link.aclose()


async def one_echo(link):
    async with connected(link.address) as (reader, writer):
        writer.write(b"x")
        return await reader.readexactly(1)


async def test_no_packet_is_larger_than_the_mtu():
    async with linked() as link, connected(link.address) as (reader, writer):
        writer.write(bytes(3_000_000))
        writer.write_eof()
        await reader.read(-1)
        stats = link.stats.up
        assert stats.bytes_in / stats.packets_in <= 1514
        assert stats.packets_in >= 3_000_000 / 1460


async def test_a_packet_whose_header_is_corrupt_is_lost_like_others():
    corrupt = Profile.symmetric("corrupt", Direction(delay_ms=0.5, corrupt=1.0))
    async with linked(corrupt) as link:
        with await link.namespaces.socket("A", "udp") as sender:
            for _ in range(1000):  # one in 56 is of no IP version that the device takes
                sender.sendto(b"", ("10.77.0.2", 9))
        link.set(FAST)
        assert await one_echo(link) == b"x"
        assert link.stats.up.packets_out > 1000


ASK_THE_SERVER = """
import os, socket, sys

assert os.environ["OUTRIDER_LINK_ADDRESS"] == sys.argv[1]
server = socket.create_connection(sys.argv[1].split(":"))
server.send(b"x")
assert server.recv(1) == b"x"
"""


async def test_a_command_reaches_the_server_at_its_own_address():
    async with linked() as link:
        assert await link.run([sys.executable, "-c", ASK_THE_SERVER, str(link.plan.upstream)]) == [0]
        assert link.stats.connections == 1
        assert await link.run(["sh", "-c", "exit 5"]) == [5]
        # Copied from the host, or cached from one connection to the next, these would make two runs differ.
        settings = {"tcp_no_metrics_save": "1", "tcp_rmem": "4096.131072.6291456"}
        for name, value in settings.items():
            assert await link.run(["grep", "-qx", value, f"/proc/sys/net/ipv4/{name}"]) == [0]
        with pytest.raises(ProfileError, match="tells servers apart by their ports"):
            await link.run(["true"], [Address("127.0.0.2", link.plan.upstream.port)])


async def test_a_server_that_is_not_there_resets():
    async with linked() as link:
        nowhere = TunLink(LinkPlan(FAST, NOWHERE))
        async with nowhere, connected(nowhere.address) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read(-1)
        assert await one_echo(link) == b"x"  # two links at once


async def test_it_starts_and_ends_again_and_leaves_nothing():
    before = asyncio.all_tasks()
    for _ in range(2):
        async with linked() as link:
            assert await one_echo(link) == b"x"
            with pytest.raises(OSError, match="in use"):
                await TunLink(LinkPlan(FAST, NOWHERE, listen=Address(*link._address))).start()
            await link.aclose()
            await link.aclose()
    await asyncio.gather(*(asyncio.all_tasks() - before))


def congestion_of(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@pytest.mark.parametrize("congestion", ["cubic", "reno"])
async def test_connections_over_the_link_have_the_congestion_control_asked_for(monkeypatch, congestion):
    seen = []
    dial_with = namespace_link.dial_with

    async def watched(own, host, port):
        seen.append(congestion_of(own))
        return await dial_with(own, host, port)

    monkeypatch.setattr(namespace_link, "dial_with", watched)
    async with linked(congestion=congestion) as link:
        assert await one_echo(link) == b"x"
        (far,) = link._far.values()
        assert [*seen, congestion_of(far._listener)] == [congestion] * 2


async def test_a_server_of_the_commands_own_comes_before_one_outside():
    """The command's server never accepts while its port leads over the link."""
    script = (
        "import socket, sys; own = socket.create_server(('127.0.0.1', int(sys.argv[1]))); own.settimeout(0.05)\n"
        "while True:\n"
        " try:\n"
        "  with socket.create_connection(own.getsockname()): sys.exit(own.accept()[0].close())\n"
        " except (TimeoutError, ConnectionResetError): continue"  # reset: the port is just leaving the link
    )
    async with serving() as outside, linked() as link:
        command = [sys.executable, "-c", script, str(outside.port)]
        assert await link.run(command) == [0]
        assert set(link.stayed) == {outside.port}


async def test_a_recording_shows_every_packet_with_the_times_of_the_link(tmp_path):
    files = RecordingFiles(str(tmp_path / "x.pcapng"), str(tmp_path / "x.csv"))
    profile = Profile.symmetric("lossy", Direction(delay_ms=20, loss=0.05))
    async with linked(profile, recording=files) as link:
        async with connected(link.address) as (reader, writer):
            writer.write(bytes(200_000))
            await reader.readexactly(200_000)
        stats = link.stats
    _, _, packets = read_pcapng(tmp_path / "x.pcapng")
    entered = {packet.packet_id: packet for packet in packets if packet.flags == OUTBOUND}
    left = {packet.packet_id: packet for packet in packets if packet.flags == INBOUND}
    assert len(entered) >= stats.up.packets_in + stats.down.packets_in
    assert left.keys() <= entered.keys()
    assert len(entered) - len(left) >= stats.up.lost + stats.down.lost > 0
    assert all(left[number].data == entered[number].data for number in left)
    delays_ms = [(left[number].time_ns - entered[number].time_ns) / 1e6 for number in left]
    assert min(delays_ms) >= 20
    assert statistics.median(delays_ms) < 25  # about 20.1 on a quiet machine
    lines = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert len(lines) == len(entered)
    fates = Counter((line["direction"], line["fate"]) for line in lines)
    assert fates["up", "lost"] >= stats.up.lost
    assert fates["up", "arrived"] + fates["down", "arrived"] == len(left)
