"""Soaks: memory, faults and deviations without processes, and one small run with all of them."""

import json
import random

import pytest
from typer.testing import CliRunner

from outrider_bench.load.clients.counters import ClientCounters
from outrider_lab.cli.app import app
from outrider_lab.soak.run import LEAST_SAMPLES, MemorySample, SoakPlan, SoakResult, memory_growths
from outrider_proto.errors import UsageError

SMALL = ["--set", "families=chat", "--set", "per-family=4", "--set", "max-new-tokens=12", "--set", "any-cores=true"]
runner = CliRunner()


def memory(who: str, sizes: list[int]) -> list[MemorySample]:
    return [MemorySample(10.0 * number, who, size) for number, size in enumerate(sizes)]


def test_growth_leaves_out_the_warm_up_and_short_lives():
    steady = [50, 90] + [100, 101, 99] * 3
    growing = [50, 90] + [100 + number for number in range(9)]
    samples = memory("steady", steady) + memory("growing", growing) + memory("short", [1] * LEAST_SAMPLES)
    found = {growth.who: growth for growth in memory_growths(samples, warm_up_s=20.0)}
    assert set(found) == {"steady", "growing"}
    assert found["steady"].share == pytest.approx(0, abs=0.001)
    assert found["growing"].share == pytest.approx(107 / 101 - 1)


def test_deviations_are_reported_in_words():
    soaked = SoakResult(
        client_counters=[ClientCounters(0, wrong=1, strays=2)],
        memory_growths=memory_growths(memory("server 1", [*range(100, 130)]), 0),
    )
    assert soaked.deviations[:2] == ["1 answers with a wrong token", "2 verdicts twice or unasked"]
    assert soaked.deviations[2].startswith("server 1 grew by")
    assert not SoakResult(client_counters=[ClientCounters(0)]).deviations


def test_faults_are_spread_over_the_time():
    plan = SoakPlan(100.0, cuts=5, outages=3, kills=2)
    faults = plan.faults(random.Random(1))
    assert sorted(kind for _, kind in faults) == ["cut"] * 5 + ["kill"] * 2 + ["outage"] * 3
    assert [moment for moment, _ in faults] == sorted(moment for moment, _ in faults)
    assert faults[0][0] > 0
    assert faults[-1][0] < 100
    assert plan.faults(random.Random(1)) == faults


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "needs an end"), ({"seconds": 5, "warm_up_s": 6}, "warm_up=6"), ({"cuts": -1}, "cuts=-1")],
)
def test_a_soak_has_an_end_and_a_warm_up_before_it(options, message):
    with pytest.raises(UsageError, match=message):
        SoakPlan(**options)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.timeout(900)  # several processes begin with torch: on a busy machine that takes minutes
def test_a_soak_of_cuts_outages_and_a_kill(tmp_path):
    report = tmp_path / "soak.json"
    faults = ["--cuts", "1", "--outages", "1", "--kills", "1", "--set", "think=0.1"]
    faults += ["--set", "warm_up=3600"]  # too short to tell whether anything grows, however slow the machine
    result = runner.invoke(
        app, ["soak", *SMALL, "--set", "clients=2", *faults, "--json", str(report)], catch_exceptions=False
    )
    soaked = json.loads(report.read_text())["soak"]
    assert soaked["deviations"] == []
    assert soaked["faults"]["kill"] == 1
    assert result.exit_code == 0
    shown = runner.invoke(app, ["show", str(report)], catch_exceptions=False)
    assert shown.output.splitlines() == result.output.splitlines()[-len(shown.output.splitlines()) :]
