"""Messages over a lossy path: whole, in order, and retransmitted at the times of the stated rules."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.profiles.profile import Bursts, Direction, Profile
from outrider_netsim.virtual.clock import VirtualClock
from outrider_netsim.virtual.flow import FIRST_RTO_S, MOST_RETRIES, Flow, TcpRttEstimator
from outrider_netsim.virtual.link import VirtualLink

STEADY = Direction(delay_ms=50)


def flow(direction, seed=1, back=STEADY):
    return VirtualLink(Profile("test", direction, back), seed).flow("up")


class Lossy:
    """A path of 50 ms each way that loses the data packets with these numbers, and keeps the times of all."""

    def __init__(self, lost):
        self.clock = VirtualClock()
        self.lost = lost
        self.sent_at = []
        self.flow = Flow(self.clock, self.data, self.ack)

    def data(self, size_bytes, arrived):
        self.sent_at.append(self.clock.now)
        if len(self.sent_at) - 1 not in self.lost:
            self.clock.call_at(self.clock.now + 0.05, arrived)

    def ack(self, size_bytes, arrived):
        self.clock.call_at(self.clock.now + 0.05, arrived)


def test_a_message_takes_the_paths_time():
    # two packets, of 1448 and 552 bytes and 66 more each, at 1 Mbit/s
    assert flow(Direction(delay_ms=50, rate_bps=1e6)).arrival(2000, 3.0) == pytest.approx(3.05 + (2000 + 132) * 8 / 1e6)


def test_an_empty_message_is_one_packet():
    link = VirtualLink(Profile("test", STEADY, STEADY))
    assert link.flow("up").arrival(0, 0.0) == pytest.approx(0.05)
    assert link.stats.up.bytes_in == 66


def test_the_first_packet_when_lost_is_sent_again_after_a_second_and_doubling():
    path = Lossy({0, 1})
    assert path.flow.arrival(100, 0.0) == pytest.approx(FIRST_RTO_S + 2 * FIRST_RTO_S + 0.05)
    assert path.sent_at == pytest.approx([0, 1, 3])


def test_a_lone_packet_when_lost_is_sent_again_after_srtt_and_200_ms():
    path = Lossy({1})
    path.flow.arrival(100, 0.0)
    # the first round trip, of 100 ms, gives RTTVAR 50 ms, and 4 RTTVAR is 200 ms too
    assert path.flow.arrival(100, 1.0) == pytest.approx(1.0 + 0.1 + 0.2 + 0.05)


def test_a_packet_that_others_overtook_is_sent_again_after_a_round_trip_and_some():
    path = Lossy({22})
    for n in range(20):  # a steady round trip of 100 ms, whose variation dies away
        path.flow.arrival(100, float(n))
    assert path.flow.arrival(5 * 1448, 100.0) == pytest.approx(100.0 + 0.125 + 0.05, abs=0.002)
    assert path.flow.packets_sent_again == 1


def test_after_a_timeout_one_packet_asks_and_its_ack_brings_the_others():
    path = Lossy({1, 2, 3, 4})  # the first of them, then all three of the second message but sent again
    path.flow.arrival(100, 0.0)
    arrived = path.flow.arrival(4 * 1448, 10.0)
    rto = 0.1 + 0.2
    assert path.sent_at[5:] == pytest.approx([10 + rto] + [10 + rto + 0.1] * 3)
    assert arrived == pytest.approx(10 + rto + 0.1 + 0.05)


def test_a_flow_on_a_dead_link_breaks_in_the_end():
    link = VirtualLink(Profile("test", STEADY, STEADY))
    link.cut()
    broken = []
    dead = link.flow("up", lambda: broken.append(link.clock.now))
    with pytest.raises(TimeoutError, match="sent 16 times without an answer"):
        dead.arrival(100, 0.0)
    assert broken == [sum(min(120, 2**n) for n in range(MOST_RETRIES + 1))]
    with pytest.raises(TimeoutError):
        dead.send(100, lambda: None)
    assert link.stats.up.dropped_by_outage == MOST_RETRIES + 1


def test_the_smoothing_is_that_of_rfc_6298():
    trips = TcpRttEstimator()
    assert trips.rto_s == 1
    trips.measured(0.1)
    assert (trips.srtt_s, trips.rttvar_s) == (0.1, 0.05)
    trips.measured(0.2)
    assert trips.rttvar_s == pytest.approx(0.75 * 0.05 + 0.25 * 0.1)
    assert trips.srtt_s == pytest.approx(0.875 * 0.1 + 0.125 * 0.2)
    assert trips.rto_s == pytest.approx(trips.srtt_s + 4 * trips.rttvar_s if 4 * trips.rttvar_s > 0.2 else 0.3125)
    trips.double()
    assert trips.rto_s == pytest.approx(2 * (trips.srtt_s + max(0.2, 4 * trips.rttvar_s)))


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


@given(up=bad_paths, down=bad_paths, sizes=st.lists(st.integers(0, 20_000), max_size=8), seed=st.integers(0, 99))
def test_all_messages_arrive_once_and_in_order(up, down, sizes, seed):
    link = VirtualLink(Profile("bad", up, down), seed)
    sender, arrived, rng = link.flow("up"), [], random.Random(seed)
    for n, size in enumerate(sizes):
        link.clock.run_until(link.clock.now + rng.choice([0, 0.01, 1]))
        sender.send(size, lambda n=n: arrived.append(n))
    while link.clock.next_event() is not None:
        link.clock.step()
    assert arrived == list(range(len(sizes)))


def test_a_large_message_takes_the_time_of_its_rate():
    arrived = flow(Direction(delay_ms=20, rate_bps=20e6)).arrival(10_000_000, 0.0)
    packets = -(-10_000_000 // 1448)
    assert arrived == pytest.approx((10_000_000 + 66 * packets) * 8 / 20e6 + 0.02, rel=0.01)
