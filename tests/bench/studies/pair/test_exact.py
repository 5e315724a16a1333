"""Answers of the embedded pair are those of transformers."""

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
    result, report = run(tmp_path, "exact", "--set", "prompts=6")
    assert result.exit_code == 0, result.output
    assert set(report["ways"]) == {f"{name} {way}" for name in PAIR for way in ("in process", "over gRPC")}
    assert (report["reference"], report["questions"], report["is_exact"]) == ("generate", 6, True)
    for way in report["ways"].values():
        assert way["departures"] == []
        assert report["tokens"] / 2 < way["drafted"] < report["tokens"]  # drafts were verified, and much of them


def test_in_bfloat16_answers_may_depart_at_near_ties(tmp_path):
    (tmp_path / "asked.jsonl").write_text(json.dumps({"category": "math", "turns": ["1 + 1?", "And 2?"]}))
    asked = ("--questions", tmp_path / "asked.jsonl", "--set", "max-new-tokens=6", "--dtype", "bfloat16")
    result, report = run(tmp_path, "exact", "--drafter", "lookup", "--drafter", "eagle2", *asked)
    assert result.exit_code == 0, result.output
    assert (report["reference"], report["questions"]) == ("the plain loop", 2)
    assert set(report["ways"]) == {
        f"{name} {way}" for name in ("lookup", "eagle2") for way in ("in process", "over gRPC")
    }


def test_batch_invariant_answers_do_not_depart(tmp_path):
    (tmp_path / "asked.jsonl").write_text(json.dumps({"category": "math", "turns": ["1 + 1?", "And 2?"]}))
    asked = ("--questions", tmp_path / "asked.jsonl", "--set", "max-new-tokens=6")
    asked += ("--dtype", "bfloat16", "--set", "batch-invariant=true")
    result, report = run(tmp_path, "exact", "--drafter", "eagle2", *asked)
    assert result.exit_code == 0, result.output
    assert (report["reference"], report["batch_invariant"], report["is_exact"]) == ("the plain loop", True, True)
    assert all(way["drafted"] for way in report["ways"].values())
