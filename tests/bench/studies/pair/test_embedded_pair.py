"""The embedded pair end to end: exact answers, killed servers, and the reports that say so."""

import json

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_models.core.embedded import PAIR

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(tmp_path, *arguments):
    report = tmp_path / "report.json"
    result = CliRunner().invoke(app, [*map(str, arguments), "--json", str(report)])
    return result, json.loads(report.read_text())


def test_answers_are_those_of_transformers_generate(tmp_path):
    """Both drafters, in process and over gRPC. `outrider-bench exact` does it with 200 prompts."""
    result, report = run(tmp_path, "exact", "--prompts", 12)
    assert result.exit_code == 0, result.output
    assert report["differing"] == {f"{name} {way}": [] for name in PAIR for way in ("in process", "over gRPC")}


def test_a_server_killed_in_mid_answer_changes_nothing(tmp_path):
    """`outrider-bench recover` does it 20 times."""
    result, report = run(tmp_path, "recover", "--prompts", 4, "--seed", 7)
    assert result.exit_code == 0, result.output
    assert all(recovery["identical"] for recovery in report["recoveries"])
    assert any(recovery["interrupted"] for recovery in report["recoveries"])


def test_evaluation_of_a_few(tmp_path):
    picture = tmp_path / "evaluation.png"
    few = ("--per-family", 2, "--code", 4, "--tau-per-family", 2)
    result, report = run(tmp_path, "eval", *few, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert picture.stat().st_size > 10_000
    assert set(report["drafters"]) == set(PAIR)
    for drafter in report["drafters"].values():
        for accepted in drafter["acceptance"].values():
            assert accepted["mismatches"] == 0
            assert 1 <= accepted["overall"] <= 6
    assert report["made_by"]["command"]


def test_overhead_adds_up(tmp_path):
    result, report = run(tmp_path, "overhead", "--prompts", 2, "--drafter", "moa")
    assert result.exit_code == 0, result.output
    parts = report["moa"]
    assert parts["draft_forward"] <= parts["draft"] <= parts["total"]
    assert parts["outside"] <= parts["total"] - parts["verify"]
