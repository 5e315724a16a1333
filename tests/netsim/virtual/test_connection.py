"""Messages over a lossy path: whole, in order, and at the times of TCP."""

import asyncio
import random

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from outrider_netsim.profiles.profile import Bursts, Direction, Profile
from outrider_netsim.virtual.link import VirtualLink

STEADY = Direction(delay_ms=50)


def test_a_message_takes_the_paths_time():
    link = VirtualLink(Profile("test", Direction(delay_ms=50, rate_bps=1e6), STEADY))

    async def arrival_s():
        pipe = await link.connect()
        server = await link.accept()
        await asyncio.sleep(3 - link.clock.now)
        pipe.send(b"", 2000)
        await server.receive()
        return link.clock.now

    # two packets, of 1448 and 552 bytes and 66 more each, at 1 Mbit/s
    assert link.clock.run(arrival_s()) == pytest.approx(3.05 + (2000 + 132) * 8 / 1e6)


def test_a_connection_on_a_dead_link_breaks_in_the_end():
    link = VirtualLink(Profile("test", STEADY, STEADY))

    async def send_into_nothing():
        pipe = await link.connect()
        link.cut()
        pipe.send(b"", 100)
        with pytest.raises(TimeoutError, match="restore it and connect again"):
            await pipe.receive()
        with pytest.raises(TimeoutError):
            pipe.send(b"", 100)

    link.clock.run(send_into_nothing())
    assert 900 < link.clock.now < 1100  # Linux's 15 minutes, at the next timeout


bad_paths = st.builds(
    lambda loss, direction: Direction(**(direction | loss)),
    st.sampled_from([{"loss": 0.0}, {"loss": 0.3}, {"bursts": Bursts(0.1, 0.3)}]),
    st.fixed_dictionaries(
        {
            "delay_ms": st.just(20.0),
            "jitter_ms": st.sampled_from([1.0, 20.0]),
            "distribution": st.just("normal"),
            "rate_bps": st.sampled_from([0.0, 1e6]),
            "queue_packets": st.sampled_from([3, 1000]),
        }
    ),
)


@given(
    up=bad_paths,
    down=bad_paths,
    sizes=st.lists(st.integers(0, 60_000), max_size=8),
    seed=st.integers(0, 99),
    congestion=st.sampled_from(["cubic", "reno"]),
)
def test_all_messages_arrive_once_and_in_order(up, down, sizes, seed, congestion):
    link = VirtualLink(Profile("bad", up, down), seed, congestion=congestion)
    rng = random.Random(seed)

    async def program():
        try:
            pipe = await link.connect()
        except TimeoutError:  # all of its few packets were lost
            reject()
        for n, size in enumerate(sizes):
            await asyncio.sleep(rng.choice([0, 0.01, 1]))
            pipe.send(n, size)
        pipe.close()
        server = await link.accept()
        arrived = [await server.receive() for _ in sizes]
        with pytest.raises(EOFError):
            await server.receive()
        return arrived

    assert link.clock.run(program()) == list(range(len(sizes)))
