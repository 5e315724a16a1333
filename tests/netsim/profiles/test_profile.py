"""Profiles as data: derived numbers, and what is refused."""

import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.profile import Bursts, Direction
from outrider_netsim.profiles.traces import DeliveryTrace


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delay_ms": -1}, "delay_ms=-1: need 0 to 60000"),
        ({"rate_bps": 10}, "rate_bps=10: need 0 [(]unlimited[)] or at least 1000"),
        ({"loss": 1.5}, "loss=1.5: need 0 to 1"),
        ({"distribution": "cauchy"}, "distribution='cauchy': need one of normal, .*, or FILE.dist"),
        ({"jitter_ms": 3}, "jitter_ms=3 with distribution='constant'"),
        ({"correlation": -0.1}, "correlation=-0.1: need 0 to 1"),
        ({"correlation": 1}, "correlation=1: the delay would never change"),
        ({"correlation": 0.5, "coherence_ms": 50}, "correlation=0.5 beside coherence_ms=50: .*give one of them"),
        ({"aqm": "red"}, "aqm='red': need one of none, codel, fq_codel"),
        ({"queue_bytes": 2**32}, "queue_bytes=4.29497e[+]09: need 0 to"),
        ({"queue_ms": 300, "queue_packets": 10}, "queue_packets=10 beside queue_ms=300: .*give one of them"),
        ({"loss": 0.1, "bursts": Bursts(0.1, 0.1)}, "loss=0.1 beside bursts"),
    ],
)
def test_absurd_values_are_refused_by_name(arguments, message):
    with pytest.raises(ProfileError, match=message):
        Direction(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.5, 0.1), "bursts.p=1.5: need 0 to 1"),
        ((0.1, 0), "bursts.r=0: the link would stay bad"),
        ((0.1, 0.1, -1), "bursts.bad=-1"),
    ],
)
def test_absurd_bursts_are_refused_by_name(arguments, message):
    with pytest.raises(ProfileError, match=message):
        Bursts(*arguments)


@pytest.mark.parametrize(
    ("direction", "limit_bytes"),
    [
        (Direction(rate_bps=1e6, queue_packets=7), None),
        (Direction(rate_bps=1e6), 1_514_000),  # nothing asked for: 1000 full packets, or what the delay holds
        (Direction(delay_ms=300, rate_bps=100e6), 3_750_000),
        (Direction(delay_ms=300), 2**32 - 1),
        (Direction(rate_bps=1e6, queue_ms=300), 37_500),
        (Direction(rate_bps=1e6, queue_ms=1), 3028),  # two full packets
        (Direction(rate_bps=1e6, queue_bytes=20_000), 20_000),
        (Direction(queue_ms=300, trace=DeliveryTrace("one a ms", (1,))), 451_200),
        (Direction(queue_ms=300), 2**32 - 1),  # nothing waits without a rate
    ],
)
def test_a_queue_of_time_or_bytes_or_unasked_limits_the_buffer_before_the_rate(direction, limit_bytes):
    assert direction.buffer_bytes == limit_bytes
