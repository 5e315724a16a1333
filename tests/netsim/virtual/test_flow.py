"""Messages over a lossy path: whole, in order, and at the times of TCP."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.profiles.profile import Bursts, Direction, Profile
from outrider_netsim.virtual.link import VirtualLink

STEADY = Direction(delay_ms=50)


def flow(direction, seed=1, back=STEADY, congestion="cubic"):
    return VirtualLink(Profile("test", direction, back), seed, congestion=congestion).flow("up")


def test_a_message_takes_the_paths_time():
    # two packets, of 1448 and 552 bytes and 66 more each, at 1 Mbit/s
    assert flow(Direction(delay_ms=50, rate_bps=1e6)).arrival(2000, 3.0) == pytest.approx(3.05 + (2000 + 132) * 8 / 1e6)


def test_a_flow_on_a_dead_link_breaks_in_the_end():
    link = VirtualLink(Profile("test", STEADY, STEADY))
    link.cut()
    broken = []
    dead = link.flow("up", lambda: broken.append(link.clock.now))
    with pytest.raises(TimeoutError, match="restore it and connect again"):
        dead.arrival(100, 0.0)
    assert len(broken) == 1
    assert 900 < broken[0] < 1100  # Linux's 15 minutes, at the next timeout
    with pytest.raises(TimeoutError):
        dead.send(100, lambda: None)


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
    sender, arrived, rng = link.flow("up"), [], random.Random(seed)
    for n, size in enumerate(sizes):
        link.clock.run_until(link.clock.now + rng.choice([0, 0.01, 1]))
        sender.send(size, lambda n=n: arrived.append(n))
    while link.clock.next_event() is not None:
        link.clock.step()
    assert arrived == list(range(len(sizes)))
