"""Whole measurements: in virtual time, and briefly through real engines."""

import socket
from dataclasses import replace

import pytest

from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_netsim.link import Link
from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.transfers import real_link
from outrider_netsim.transfers.plan import TransferPlan
from outrider_netsim.transfers.run import measure_transfers

FOUR_G = profile_named("paper-4g")
SHORT = TransferPlan(seconds=1, transfers=1, idle_s=0.5, exchanges=60, replies=3, requests=2, cuts_s=(0.5,))
NOTHING = TransferPlan(seconds=0, transfers=0, exchanges=0, replies=0, requests=0, pings=0)
FIGURES = {
    "goodput_mbps",
    "idle_rtt_ms",
    "loaded_rtt_ms",
    "after_idle_ms",
    "reply_ms",
    "lone_loss_ms",
    "recovery_0.5s_ms",
    "overhead_ms",
}


async def virtually(**options):
    return await measure_transfers([FOUR_G], ["virtual"], SHORT, **options)


async def test_every_repetition_has_its_seed_and_the_same_seed_the_same_result():
    first, again = await virtually(repetitions=2, seed=5), await virtually(repetitions=2, seed=5)
    assert first.rows == again.rows
    (later,) = (await virtually(repetitions=1, seed=6)).rows
    (row,) = first.rows
    assert row.samples.keys() == FIGURES
    for figure in FIGURES:
        assert row.samples[figure][1] == later.samples[figure][0], figure
    assert row.samples["idle_rtt_ms"][0] != row.samples["idle_rtt_ms"][1]
    assert first.made_by[0]["seeds"] == [5, 6]


async def test_links_at_once_change_nothing_in_virtual_time():
    assert (await virtually(links=4)).rows == (await virtually(links=1)).rows


@pytest.mark.parametrize("repetitions", [0, 10**6])
async def test_absurd_repetitions_are_refused(repetitions):
    with pytest.raises(ProfileError, match="need 1 to"):
        await virtually(repetitions=repetitions)


async def test_nothing_to_measure_is_refused():
    with pytest.raises(ProfileError, match="nothing is left to measure"):
        await measure_transfers([FOUR_G], ["virtual"], NOTHING)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["tun", "proxy"])
async def test_real_engines_are_measured_like_the_virtual_one(engine):
    """Only what holds on a machine however busy: nothing is quicker than the link."""
    try:
        found = await measure_transfers([FOUR_G], [engine], SHORT, repetitions=1, links=5)
    except EngineError as error:
        pytest.skip(str(error))
    (row,) = found.rows
    assert row.engine == engine
    assert row.samples.keys() == FIGURES
    assert 0 < row.estimates["goodput_mbps"].median < 20
    assert row.estimates["idle_rtt_ms"].median > 30
    assert row.estimates["after_idle_ms"].median > 60
    assert len(row.samples["recovery_0.5s_ms"][0]) == 2
    for samples in row.samples["lone_loss_ms"]:
        assert all(each > 200 for each in samples)


async def test_a_worker_that_dies_is_an_error(monkeypatch, tmp_path):
    worker = tmp_path / "worker"
    worker.write_text("#!/bin/sh\nexit 3\n")
    worker.chmod(0o755)
    monkeypatch.setattr(real_link.sys, "executable", str(worker))
    with pytest.raises(EngineError, match="the process that measures has failed"):
        await measure_transfers([FOUR_G], ["proxy"], SHORT, repetitions=1)


@pytest.mark.root
async def test_the_sockets_have_the_congestion_control_that_is_asked_for():
    """The host's own may be another: a namespace copies it."""
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        port = upstream.getsockname()[1]
        try:
            async with Link(FOUR_G, f"127.0.0.1:{port}", "tun", congestion="reno") as link:
                ends = await real_link.open_ends(link, upstream, 1)
        except EngineError as error:
            pytest.skip(str(error))
    for end in (ends.listener, *ends.clients):
        with end:
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"


async def test_the_own_delay_is_free_of_the_links_jitter_and_in_virtual_time_only_the_rates():
    wifi, plan = profile_named("wifi"), replace(NOTHING, pings=5)
    (row,) = (await measure_transfers([wifi], ["virtual"], plan, repetitions=2)).rows
    byte_ms = 8 / wifi.up.rate_bps * 1000
    samples = [sample for samples in row.samples["overhead_ms"] for sample in samples]
    assert len(samples) == 10
    # 100 bytes and headers, both ways, and perhaps an acknowledgment of 66 before the reply.
    assert min(samples) >= 2 * 166 * byte_ms - 1e-9
    assert max(samples) <= (2 * 166 + 66) * byte_ms + 1e-9
