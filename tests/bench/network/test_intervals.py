"""Intervals of a scenario's figures hold the figures, pair ways with the stream, and carry R's error into eta."""

from dataclasses import replace

import pytest
from network_answers import answer

from outrider_bench.network.link_endpoint import PingStats
from outrider_bench.network.report import Scenario, ScenarioSetting, network_report
from outrider_bench.network.scenario_run import ScenarioRun
from outrider_bench.network.variants import SERVER_DRAFT, STREAM, ModeVariant

FAMILIES = ("code", "math", "chat", "qa")
FACTORS = (1.0, 1.3, 0.8, 1.1)  # of the time between arrivals, by prompt
VARIANTS = [ModeVariant.parse(name, {}) for name in (STREAM, SERVER_DRAFT, "stop-and-wait")]
SETTING = ScenarioSetting("paper-5g", "tun", "", 30.7, "moa", "int8", "paper", None, ("code",), 4, 21, 1, {"levels": 5})


def run_of(slower: float, pings: list[float]) -> ScenarioRun:
    answers = {
        STREAM: [answer(1, drafted=False, gap_ms=80 * slower * factor) for factor in FACTORS],
        SERVER_DRAFT: [answer(3, gap_ms=80 * slower * factor) for factor in FACTORS],
        "stop-and-wait": [answer(2, gap_ms=80 * slower * factor**2) for factor in FACTORS],
    }
    cold = {
        name: [replace(one, warm_ms=40.0 + place) for place, one in enumerate(given)] for name, given in answers.items()
    }
    return ScenarioRun.of(VARIANTS, cold, PingStats.of(pings), [one.token_ids for one in answers[STREAM]])


def scenario_of(pings: list[float]) -> Scenario:
    return Scenario(SETTING, VARIANTS, {}, [run_of(slower, pings) for slower in (1.0, 1.02, 0.97)], FAMILIES)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return scenario_of([20.0, 40.0] * 100)


def test_every_figure_lies_in_its_interval(scenario):
    checked = 0
    for variant in VARIANTS:
        metrics = scenario.medians_of(variant.name)
        for key, interval in scenario.intervals[variant.name].items():
            if interval is not None:
                assert interval[0] - 1e-9 <= metrics[key] <= interval[1] + 1e-9, (variant.name, key)
                checked += 1
    assert checked > 25


def test_what_slows_a_way_and_the_stream_alike_does_not_widen_their_ratio(scenario):
    """server-draft is three times the stream at every prompt of every run: its speed varies, their ratio does not."""
    low, high = scenario.interval(SERVER_DRAFT, "tokens_per_second")
    assert high - low > 3
    assert scenario.interval(SERVER_DRAFT, "ratio_to_stream") == pytest.approx((3.0, 3.0))
    low, high = scenario.interval("stop-and-wait", "ratio_to_stream")
    assert high - low > 0.1


def test_eta_s_interval_has_the_error_of_the_round_trip():
    exact, loose = (scenario_of(pings).interval("stop-and-wait", "eta") for pings in ([30.0] * 4, [0.0, 60.0] * 2))
    assert loose[1] - loose[0] > 1.3 * (exact[1] - exact[0])
    assert scenario_of([30.0] * 4).interval(STREAM, "eta") is None


def test_the_ideal_stream_is_a_pass_a_token_without_a_pause(scenario):
    ideal = scenario.ideal_stream
    assert ideal["tokens_per_second"] == pytest.approx(1000 / 33)
    assert scenario.medians_of(STREAM)["ratio_to_ideal_stream"] == pytest.approx(33 / 84, rel=0.01)


def test_easy_and_hard_text_are_apart(scenario):
    groups = scenario.text_groups
    assert {name: group.families for name, group in groups.items()} == {
        "easy": ["code", "math"],
        "hard": ["chat", "qa"],
    }
    for name, factor in (("easy", 1.15), ("hard", 0.95)):
        assert groups[name].medians_of(STREAM)["tokens_per_second"] == pytest.approx(12.5 / factor)
        assert groups[name].setting.prompts == 2
    assert not scenario_of([1.0]).text_groups["easy"].text_groups


def test_the_report_has_intervals_text_groups_and_round_trip(scenario):
    report = network_report([scenario.reported])
    low, high = report["ways"]["stop-and-wait"]["tokens_per_second_ci95"]
    assert low < report["tokens_per_second"] < high
    assert report["controls"]["stream"]["eta"] is None
    assert report["text"]["hard"]["ways"]["stop-and-wait"]["ratio_to_stream_ci95"][0] > 1
    assert report["round_trip"] == {
        "mean_ms": 30.0,
        "standard_error_ms": pytest.approx(10 / 600**0.5, rel=0.01),
        "pings": 600,
        "profile_ms": 30.7,
    }
