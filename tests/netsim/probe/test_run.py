"""What a probe measures is what the profile says, in virtual time and through real packets; and what it refuses."""

import json
import math
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from outrider_netsim.cli.app import app
from outrider_netsim.core.errors import EngineError
from outrider_netsim.probe import ends
from outrider_netsim.probe.run import probe_profile
from outrider_netsim.profiles.builtin import profile_named
from outrider_netsim.profiles.profile import Bursts, Direction, Profile

FOUR_G = profile_named("paper-4g")
SURE = 5.0  # deviations of chance: one false alarm in 2 million figures, before a design effect of 8 for bursts
FOUND = {"mean_ms", "deviation_ms", "p50_ms", "p99_ms", "lost", "overtaken"}


@pytest.mark.parametrize(
    "direction",
    [
        FOUR_G.up,
        replace(FOUR_G.up, in_order=True),
        replace(FOUR_G.up, distribution="uniform", base_ms=3, loss=0, bursts=Bursts(0.02, 0.25)),
        Direction(5, 1, "normal", 10e6, duplicate=0.1, corrupt=0.1, in_order=True),
    ],
    ids=["reordered", "in order", "bursts", "copies"],
)
async def test_the_virtual_link_is_what_its_profile_says(direction):
    packets = 1000
    report = await probe_profile(Profile.symmetric("probed", direction), "virtual", packets=packets)
    for figures in report.ways.values():
        assert FOUND | {"throughput_mbps"} == figures.keys()
        chance_ms = SURE * direction.delay_deviation_ms / math.sqrt(packets)
        for name, figure in figures.items():
            if figure.profile is None:
                continue
            match name:
                case "lost":
                    deviation = math.sqrt(8 * figure.profile / (10 * packets))
                    assert abs(figure.measured - figure.profile) <= SURE * deviation + 1e-9, (name, figure)
                case "p99_ms":  # a twentieth as dense there as in the middle
                    assert abs(figure.measured - figure.profile) <= 4 * chance_ms, (name, figure)
                case "throughput_mbps":
                    assert figure.measured == pytest.approx(figure.profile, rel=0.03)
                case _:
                    assert abs(figure.measured - figure.profile) <= chance_ms + 1e-9, (name, figure)
    assert (report.ways["up"]["overtaken"].measured == 0) is direction.in_order


@pytest.mark.root
async def test_packets_of_a_real_link():
    """Only what holds on a machine however busy: nothing is quicker than the link."""
    profile = Profile.symmetric("real", Direction(10, loss=0.3))
    try:
        report = await probe_profile(profile, "tun", packets=50)
    except EngineError as error:
        pytest.skip(str(error))
    for figures in report.ways.values():
        assert figures.keys() == FOUND
        assert figures["mean_ms"].measured >= 10
        assert figures["overtaken"].measured == 0
        assert 0.1 < figures["lost"].measured < 0.5
    assert report.as_json()["made_by"]["seed"] == 0


@pytest.mark.parametrize(
    ("seen", "message"),
    [({"clock_step_ns": 1e8}, "wall clock was set by 100.0 ms"), ({"overflows": 3}, "no room for 3 packets")],
)
async def test_what_spoils_a_measurement_is_an_error(monkeypatch, seen, message):
    async def worked(*_):
        return {"clock_step_ns": 0, "overflows": 0, "ways": {}} | seen

    monkeypatch.setattr(ends, "_worked", worked)
    with (
        ends.socket.socket(type=ends.socket.SOCK_DGRAM) as near,
        ends.socket.socket(type=ends.socket.SOCK_DGRAM) as far,
    ):
        for end in (near, far):
            end.bind(("127.0.0.1", 0))
        with pytest.raises(EngineError, match=message):
            await ends.SocketEnds(near, far).send_train(ends.PacketTrain(1, 0.1, 0.1))


def test_the_command_prints_a_table_or_json():
    asked = ["probe", "--profile", "paper-4g", "--loss", "0", "--engine", "virtual"]
    asked += ["--set", "packets=50", "--set", "seed=3"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0
    for expected in ("mean delay, ms", "26.83", "lost, %", "throughput, Mbit/s", "20.00"):
        assert expected in shown.stdout
    assert "paper-4g with loss 0 through virtual; seed 3" in shown.stderr
    report = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert report["up"]["lost"] == {"measured": 0, "profile": 0}
    assert {"command", "seed", "kernel", "started"} <= report["made_by"].keys()
    slow = CliRunner().invoke(app, ["probe", "--rate", "1kbit", "--engine", "virtual", "--set", "packets=2"])
    assert (slow.exit_code, "throughput, Mbit/s" in slow.stdout) == (0, True)
