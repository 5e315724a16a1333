"""Probe targets over bare loopback: nothing is lost or mixed up, and failures are reported."""

import json
import socket
import sys

import pytest

from outrider_netsim.core.errors import EngineError
from outrider_netsim.namespaces.blackhole import ignore_connections
from outrider_netsim.probe import targets
from outrider_netsim.probe.samples import PacketTrain, SaturatingLoad
from outrider_netsim.probe.targets import DatagramTarget, StreamTarget, listening_socket

TRAIN = PacketTrain(100, 0.001, 2.0)


@pytest.fixture
def pair():
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
    ):
        for each in (client, server):
            each.bind(("127.0.0.1", 0))
        yield client, server


@pytest.fixture
def streams():
    with listening_socket() as listener:
        yield StreamTarget(listener.getsockname(), listener, stall_s=5.0, quiet_s=0.01)


async def test_every_datagram_is_seen_after_it_was_sent(pair):
    times_by_way = await DatagramTarget(*pair).send_train(TRAIN)
    for times in times_by_way.values():
        assert len(times.sent_s) == 100
        assert not any(times.lost)
        assert min(times.delays_ms) >= 0
        assert all(b - a >= 0 for a, b in zip(times.sent_s, times.sent_s[1:], strict=False))


async def test_what_the_volley_before_left_behind_is_not_counted(pair):
    client, server = pair
    target = DatagramTarget(client, server)
    await target.send_train(TRAIN)
    client.send((1).to_bytes(4) + (7).to_bytes(4))  # a latecomer of the first train
    client.send(b"junk")
    times_by_way = await target.send_train(TRAIN)
    assert times_by_way["up"].received_s[7] > times_by_way["up"].sent_s[7]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can make a socket deaf")
async def test_deaf_ends_lose_everything_and_the_volley_ends_in_time(pair):
    for each in pair:
        ignore_connections(each)
    times_by_way = await DatagramTarget(*pair).send_train(PacketTrain(10, 0.001, 0.1))
    assert all(times_by_way["up"].lost)
    assert all(times_by_way["down"].lost)


async def test_a_load_counts_full_packets(pair):
    load_times = await DatagramTarget(*pair).send_load(SaturatingLoad("down", 5e6, 0.3, 1.0))
    assert load_times.arrivals
    assert {size for _, size in load_times.arrivals} == {1514.0}


async def test_streams_carry_every_message_on_many_connections(streams):
    for times in (await streams.send_train(TRAIN)).values():
        assert not any(times.lost)
        assert min(times.delays_ms) >= 0


async def test_a_stream_is_filled_for_its_time(streams):
    load_times = await streams.send_load(SaturatingLoad("up", 1e6, 0.3, 0.0))
    assert load_times.held_back
    assert sum(size for _, size in load_times.arrivals) > 0


async def test_a_message_after_a_stall_counts_as_lost():
    with listening_socket() as listener:
        everything_stalls = StreamTarget(listener.getsockname(), listener, stall_s=0.0, quiet_s=0.01)
        times_by_way = await everything_stalls.send_train(TRAIN)
    assert all(times_by_way["up"].lost)


async def test_a_link_that_refuses_is_an_engine_error():
    with listening_socket() as listener, listening_socket() as gone:
        refused = StreamTarget(gone.getsockname(), listener, 5.0, 0.01)
        gone.close()
        with pytest.raises(EngineError, match=r"worker failed: ConnectionRefusedError.*Try again"):
            await refused.send_train(TRAIN)


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ({"clock_step_ns": 5_000_000, "ways": {}}, r"the wall clock was set by 5\.0 ms"),
        ({"clock_step_ns": 0, "ways": {"up": {"overflows": 3}}}, "no room for 3 packets: .*rmem_max"),
    ],
)
async def test_a_spoilt_measurement_is_refused(monkeypatch, tmp_path, seen, message):
    worker = tmp_path / "worker"
    worker.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint({json.dumps(seen)!r})\n")
    worker.chmod(0o755)
    monkeypatch.setattr(targets.sys, "executable", str(worker))
    with pytest.raises(EngineError, match=message):
        await targets.run_worker({}, [])
