"""The embedded pair's scores and acceptance, and what is left of them when the server is killed."""

import json

import pytest
from typer.testing import CliRunner

from outrider_lab.cli.app import app
from outrider_lab.paper.measurement import settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(tmp_path, *arguments):
    report = tmp_path / "report.json"
    result = CliRunner().invoke(app, [*map(str, arguments), "--json", str(report)])
    return result, json.loads(report.read_text())


def test_a_user_s_questions_have_acceptance_alone(tmp_path):
    (tmp_path / "asked.jsonl").write_text(json.dumps({"category": "math", "turns": ["1 + 1?", "And 2?"]}))
    options = settings(questions=tmp_path / "asked.jsonl", max_new_tokens=4)
    result, report = run(tmp_path, "eval", "--drafter", "lookup", *options)
    assert result.exit_code == 0, result.output
    assert (report["scores"], report["stop"], report["target_alone"]) == ({}, {}, None)
    accepted = report["drafters"]["lookup"]["acceptance"]["tree"]
    assert (list(accepted["by_family"]), accepted["by_group"], accepted["mismatches"]) == (["math"], {}, 0)
