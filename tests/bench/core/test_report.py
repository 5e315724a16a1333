"""Reports are written whole, say how they were made, and fail with a message."""

import json

import pytest

from outrider_bench.core.report import write_report
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import UsageError


def test_a_report_says_how_it_was_made(tmp_path):
    path = tmp_path / "new" / "report.json"
    write_report(path, {"tokens": (1, 2)})
    report = json.loads(path.read_text())
    assert report["tokens"] == [1, 2]
    assert {"command", "versions", "processor", "cores", "load_average"} <= set(report["made_by"])
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]


def test_nothing_says_whose_machine_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "report.json"
    write_report(path, {"target": str(target_dir()), "drafter": str(tmp_path / "mine" / "head")})
    report = json.loads(path.read_text())
    assert report["target"] == "outrider_models/embedded/target"
    assert report["drafter"] == "~/mine/head"


def test_a_path_that_cannot_be_written_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write_report(tmp_path / "file" / "report.json", {})
