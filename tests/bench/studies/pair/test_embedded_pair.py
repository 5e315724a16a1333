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
    """Both drafters, in process and over gRPC, a prompt of each family. `outrider-bench exact` does it with 200."""
    result, report = run(tmp_path, "exact", "--prompts", 6)
    assert result.exit_code == 0, result.output
    assert set(report["ways"]) == {f"{name} {way}" for name in PAIR for way in ("in process", "over gRPC")}
    assert (report["reference"], report["questions"], report["is_exact"]) == ("generate", 6, True)
    for way in report["ways"].values():
        assert way["departures"] == []
        assert report["tokens"] / 2 < way["drafted"] < report["tokens"]  # drafts were verified, and much of them


def test_in_bfloat16_answers_may_depart_at_near_ties(tmp_path):
    (tmp_path / "asked.jsonl").write_text(json.dumps({"category": "math", "turns": ["1 + 1?", "And 2?"]}))
    asked = ("--questions", tmp_path / "asked.jsonl", "--max-new-tokens", 6, "--dtype", "bfloat16")
    result, report = run(tmp_path, "exact", "--drafter", "lookup", "--drafter", "eagle2", *asked)
    assert result.exit_code == 0, result.output
    assert (report["reference"], report["questions"]) == ("the plain loop", 2)
    assert set(report["ways"]) == {
        f"{name} {way}" for name in ("lookup", "eagle2") for way in ("in process", "over gRPC")
    }


def test_batch_invariant_answers_do_not_depart(tmp_path):
    (tmp_path / "asked.jsonl").write_text(json.dumps({"category": "math", "turns": ["1 + 1?", "And 2?"]}))
    asked = ("--questions", tmp_path / "asked.jsonl", "--max-new-tokens", 6, "--dtype", "bfloat16", "--batch-invariant")
    result, report = run(tmp_path, "exact", "--drafter", "eagle2", *asked)
    assert result.exit_code == 0, result.output
    assert (report["reference"], report["batch_invariant"], report["is_exact"]) == ("the plain loop", True, True)
    assert all(way["drafted"] for way in report["ways"].values())


def test_evaluation_of_a_drafter_that_reads_no_features(tmp_path):
    """It was waited for features that nobody sends."""
    few = ("--families", "code", "--code", 1, "--tau-per-family", 1, "--max-new-tokens", 48)
    result, report = run(tmp_path, "eval", "--drafter", "independent", *few)
    assert result.exit_code == 0, result.output
    passed = report["drafters"]["independent"]["passed"]
    assert {cut: len(each) for cut, each in passed.items()} == {"1": 1, "10": 1, "25": 1, "40": 1}


def test_evaluation_of_a_few(tmp_path):
    picture = tmp_path / "evaluation.png"
    few = ("--per-family", 1, "--code", 2, "--tau-per-family", 1)
    result, report = run(tmp_path, "eval", *few, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert picture.stat().st_size > 10_000
    assert set(report["drafters"]) == set(PAIR)
    for drafter in report["drafters"].values():
        for accepted in drafter["acceptance"].values():
            assert accepted["mismatches"] == 0
            assert 1 <= accepted["overall"] <= 6
    assert report["made_by"]["command"]


def test_a_user_s_questions_have_acceptance_alone(tmp_path):
    (tmp_path / "asked.jsonl").write_text(json.dumps({"category": "math", "turns": ["1 + 1?", "And 2?"]}))
    options = ("--questions", tmp_path / "asked.jsonl", "--max-new-tokens", 4, "--plot", tmp_path / "evaluation.png")
    result, report = run(tmp_path, "eval", "--drafter", "lookup", *options)
    assert result.exit_code == 0, result.output
    assert (report["scores"], report["stop"], report["target_alone"]) == ({}, {}, None)
    accepted = report["drafters"]["lookup"]["acceptance"]["tree"]
    assert (list(accepted["by_family"]), accepted["by_group"], accepted["mismatches"]) == (["math"], {}, 0)
