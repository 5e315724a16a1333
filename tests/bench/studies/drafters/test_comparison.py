"""Drafters against the controls on the embedded pair, and the pure counting below it."""

import json
import time

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.core.acceptance import acceptance_by_position
from outrider_bench.core.energy import EnergyMeter
from outrider_bench.studies.drafters.comparison_report import PLAIN, Speed
from outrider_client.core.events import Cycle
from outrider_proto.errors import UsageError
from outrider_proto.frames import Draft, Verdict
from outrider_proto.tree import DraftTree

CHAIN = DraftTree.chain([5, 6, 7])


def verdict_on(tree: DraftTree, accepted: int) -> Cycle:
    return Cycle(Draft(1, 0, (), 3, tree), Verdict(1, tuple(range(accepted)), 9))


def test_positions_are_counted_against_all_and_against_the_one_before():
    positions = acceptance_by_position([verdict_on(CHAIN, accepted) for accepted in (0, 1, 3, 3)])
    assert positions.reached == (0.75, 0.5, 0.5)
    assert positions.kept == (0.75, 2 / 3, 1.0)
    assert positions.rate == 7 / 12


def test_speed_is_the_median_of_ratios_not_the_ratio_of_medians():
    speed = Speed.of(seconds=[[1.0, 1.0, 10.0]], plain=[[2.0, 3.0, 10.0]], lengths=[10, 20, 10])
    assert speed.speedup == 2.0
    assert speed.tokens_per_s == 10.0


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    directory = tmp_path_factory.mktemp("comparison")
    command = ["drafters", "--drafter", "moa", "--drafter", "eagle2", "--per-family", "1", "--max-new-tokens", "12"]
    command += ["--set", "levels=3", "--set", "repetitions=2"]
    command += ["--json", str(directory / "report.json"), "--plot", str(directory / "report.png")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert (directory / "report.png").stat().st_size > 10_000
    return json.loads((directory / "report.json").read_text())


def test_every_drafter_and_control_is_measured_in_one_run(report):
    assert {PLAIN, "generate", "generate, prompt lookup", "moa", "eagle2"} <= report["speeds"].keys()
    assert report["speeds"][PLAIN]["speedup"] == 1.0
    assert (report["repetitions"], report["seed"]) == (2, 1)
    assert "versions" in report["made_by"]


def test_every_speed_and_tau_has_an_interval_and_easy_and_hard_text_apart(report):
    for speed in report["speeds"].values():
        assert set(speed["by_group"]) == {"easy", "hard"}
        low, high = speed["speedup_ci95"]
        assert low <= speed["speedup"] <= high
    for drafted in report["drafters"].values():
        assert set(drafted["tau_by_group"]) == {"easy", "hard"}
        assert set(drafted["tau_ci95"]) == {*drafted["tau"], "easy", "hard", "all"}
        low, high = drafted["tau_ci95"]["all"]
        assert low <= drafted["overall"] <= high


def test_a_drafter_is_exact_and_its_costs_are_counted(report):
    for drafted in (report["drafters"][name] for name in ("moa", "eagle2")):
        assert drafted["mismatches"] == 0
        assert 1 < drafted["overall"] <= 4
        assert len(drafted["positions"]["reached"]) == 3
        assert drafted["draft_ms_per_level"] > 0
        assert drafted["bytes_down_per_token"] > drafted["bytes_up_per_token"] > 3


SAMPLED = ["drafters", "--drafter", "moa", "--drafter", "lookup", "--per-family", "1", "--max-new-tokens", "24"]


def test_sampled_answers_are_the_plain_loops_own_and_joules_those_of_the_meter(tmp_path, monkeypatch):
    class TenWatts(EnergyMeter):
        def read(self):
            return [round(1e7 * time.perf_counter())]

    meter = TenWatts([(tmp_path, 2**60)])
    monkeypatch.setattr(EnergyMeter, "of_machine", lambda: meter)
    out = tmp_path / "report.json"
    sampled = [*SAMPLED, "--temperature", "1.3", "--set", "seed=5", "--set", "repetitions=1", "--json", str(out)]
    result = CliRunner().invoke(app, sampled)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert report["temperature"] == 1.3
    assert report["speeds"].keys() == {PLAIN, "moa", "lookup"}
    assert report["drafters"]["moa"]["overall"] > report["drafters"]["lookup"]["overall"] > 1
    # Of six prompts a median is a mean of two, and times and joules are reciprocal.
    for speed in report["speeds"].values():
        low, high = speed["joules_per_token_ci95"]
        assert low <= speed["joules_per_token"] <= high
        assert 5 < speed["joules_per_token"] * speed["tokens_per_s"] < 20
    shown = CliRunner().invoke(app, ["show", str(out)])
    assert "J a token" in shown.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--temperature", "-1"), "temperature=-1.0: need 0"),
        (("--temperature", "1", "--set", "seed=-2"), "seed=-2: need 0"),
        (("--temperature", "1", "--set", "assistant=somewhere"), "temperature=1.0: assistant needs 0"),
    ],
)
def test_what_cannot_be_sampled_is_refused(options, message):
    result = CliRunner().invoke(app, [*SAMPLED, *options])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_a_history_of_the_same_answers_is_drafted_from(tmp_path):
    asked, out = tmp_path / "questions.jsonl", tmp_path / "report.json"
    asked.write_text('{"prompt": "Who are you?", "category": "a"}\n{"prompt": "Add 17 and 5.", "category": "b"}\n')
    command = ["drafters", "--drafter", "suffix", "--questions", str(asked), "--set", f"before={asked}"]
    result = CliRunner().invoke(app, [*command, "--max-new-tokens", "16", "--set", "repetitions=2", "--json", str(out)])
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    without, with_history = (report["drafters"][name] for name in ("suffix", "suffix, history"))
    assert with_history["overall"] > 1.5 * without["overall"]
    assert with_history["mismatches"] == without["mismatches"] == 0
    assert set(report["speeds"]["suffix"]["by_group"]) == {"a", "b"}
