"""Answers of the embedded pair are those of transformers."""

import json

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.core.reference_answers import Departure
from outrider_bench.studies.pair.exact import Exactness, WayExactness
from outrider_models.core.embedded import PAIR

from ....marks import needs_int8

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


@pytest.mark.parametrize(
    "how", [("bfloat16", "--set", "batch-invariant=true"), pytest.param(("int8",), marks=needs_int8)], ids=str
)
def test_batch_invariant_answers_do_not_depart(how, tmp_path):
    (tmp_path / "asked.jsonl").write_text(json.dumps({"category": "math", "turns": ["1 + 1?", "And 2?"]}))
    asked = ("--questions", tmp_path / "asked.jsonl", "--set", "max-new-tokens=6")
    asked += ("--dtype", *how)
    result, report = run(tmp_path, "exact", "--drafter", "eagle2", *asked)
    assert result.exit_code == 0, result.output
    assert (report["reference"], report["is_exact"]) == ("the plain loop", True)
    assert report["batch_invariant"] is (how[0] == "bfloat16")
    assert all(way["drafted"] for way in report["ways"].values())


def test_no_near_tie_is_allowed_in_int8():
    tie = Departure("1", 3, 7, 8, 0.0, 0.0, 1.0)
    failures = {}
    for dtype in ("bfloat16", "int8", "float32"):
        result = Exactness("the plain loop", dtype, 1, 4, {"moa": WayExactness(3, (tie,))})
        failures[dtype] = result.failures("moa")
    assert failures == {"bfloat16": [], "int8": [tie], "float32": [tie]}
