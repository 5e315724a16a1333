"""The netem settings of a direction, and the delays that netem makes of them: latency + jitter * entry / 8192."""

import statistics
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.netem import LOSS_ALL, TABLE_ENTRIES, BufferQdisc, delay_table, qdisc_config
from outrider_netsim.profiles.builtin import PROFILES
from outrider_netsim.profiles.distribution_table import DistributionTable
from outrider_netsim.profiles.profile import Bursts, Direction

JITTERY = Direction(21, 19, "normal", 20e6, base_ms=4.5, loss=0.001)
PACKETS = {"queue_packets": 1000}


def kernel_delays_ms(table):
    """tabledist() of sch_netem.c, for every entry: integer arithmetic that rounds the low part, and C's division."""
    if not table.entries:
        return [table.latency_ns / 1e6]
    return [(_tabledist(table.jitter_ns, entry) + table.latency_ns) / 1e6 for entry in table.entries]


def _tabledist(sigma, entry):
    low = (sigma % 8192) * entry
    low += 4096 if low >= 0 else -4096
    return int(low / 8192) + (sigma // 8192) * entry


def table_of(direction):
    return delay_table(direction.distribution, direction.delay_ms, direction.jitter_ms, direction.base_ms)


@pytest.mark.parametrize("name", PROFILES)
def test_the_kernel_draws_every_built_in_profile_with_its_mean_and_deviation(name):
    for direction in (PROFILES[name].up, PROFILES[name].down):
        delays = kernel_delays_ms(table_of(direction))
        assert statistics.mean(delays) == pytest.approx(direction.mean_delay_ms, rel=5e-4, abs=1e-6)
        assert statistics.pstdev(delays) == pytest.approx(direction.delay_deviation_ms, rel=5e-3, abs=1e-6)


@given(
    st.sampled_from(["normal", "pareto", "paretonormal", "uniform"]),
    st.floats(0, 500),
    st.floats(0.01, 400),
    st.floats(0, 100),
)
def test_the_table_fits_the_kernel_and_the_law(distribution, delay_ms, jitter_ms, base_ms):
    direction = Direction(delay_ms, jitter_ms, distribution, base_ms=base_ms)
    table = table_of(direction)
    assert len(table.entries) == TABLE_ENTRIES
    struct.pack(f"={TABLE_ENTRIES}h", *table.entries)  # s16, or struct.error
    delays = kernel_delays_ms(table)
    step_ms = table.jitter_ns / 8192 / 1e6
    assert statistics.mean(delays) == pytest.approx(direction.mean_delay_ms, rel=2e-3, abs=step_ms)
    assert statistics.pstdev(delays) == pytest.approx(direction.delay_deviation_ms, rel=2e-2, abs=step_ms)
    assert min(delays) >= base_ms - step_ms  # nothing before base


@pytest.mark.parametrize(
    ("direction", "netem_bytes", "tbf_bytes"),
    [
        (replace(JITTERY, **PACKETS), 0, 2_500_000),  # jitter may reorder: the rate is tbf's
        # Order is kept by a rate of netem's own, or by an endless one.
        (replace(JITTERY, in_order=True, **PACKETS), 2_500_000, 125_000_000_000),
        (replace(JITTERY, in_order=True, rate_bps=0, **PACKETS), 125_000_000_000, 125_000_000_000),
        (Direction(10, rate_bps=8000, **PACKETS), 1000, 125_000_000_000),  # a constant delay has netem's exact rate
    ],
)
def test_the_rate_is_netems_where_order_is_kept_and_tbfs_where_it_is_not(direction, netem_bytes, tbf_bytes):
    shaping = qdisc_config(direction, 5)
    assert (shaping.netem.rate_bytes, shaping.tbf.rate_bytes) == (netem_bytes, tbf_bytes)
    assert (shaping.netem.limit, shaping.netem.seed) == (1000, 5)
    usual = qdisc_config(replace(direction, queue_packets=None), 5)
    assert (usual.netem.limit, usual.tbf.rate_bytes) == (10_000_000, round(direction.rate_bps / 8) or tbf_bytes)
    assert usual.buffer == BufferQdisc("bfifo", 1_514_000 if direction.rate_bps else 2**32 - 1)


def test_a_table_is_the_files_own():
    table = DistributionTable("x.dist", tuple(n / 8192 for n in (-8192, -4096, 0, 12_288)))
    found = table_of(Direction(50, 10, table))
    assert len(found.entries) == 4
    assert kernel_delays_ms(found) == pytest.approx([40, 45, 50, 65], abs=0.002)


def test_a_cut_loses_everything_bursts_or_not():
    for direction in (JITTERY, replace(JITTERY, loss=0.0, bursts=Bursts(0.1, 0.2))):
        netem = qdisc_config(direction, 0, is_cut=True).netem
        assert (netem.loss, netem.bursts) == (LOSS_ALL, None)


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        (Direction(30_000, 20_000, "normal"), r"jitter_ms=20000: .* use --engine tun"),
        (replace(JITTERY, correlation=0.5), r"correlation=0\.5: .* take coherence_ms, or use --engine tun"),
    ],
)
def test_what_netem_cannot_is_refused(direction, message):
    with pytest.raises(EngineError, match=message):
        qdisc_config(direction, 0)
