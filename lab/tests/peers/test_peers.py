"""Ours and transformers answer the same prompts, each for real; a peer that cannot run is said and left out."""

import json

import pytest
from typer.testing import CliRunner

from outrider_lab.cli.app import app
from outrider_lab.paper.measurement import settings
from outrider_lab.peers import study
from outrider_proto.errors import UsageError

FEW = settings(runs=1, max_new_tokens=3, dtype="float32")


def test_ours_and_transformers_are_measured_and_llama_cpp_wants_a_gguf_file(tmp_path):
    report, picture = tmp_path / "report.json", tmp_path / "speeds.png"
    peers = ("--set", "peer=transformers", "--set", "peer=llama.cpp")
    result = CliRunner().invoke(app, ["peers", str(report), *FEW, *peers, *settings(plot=picture)])
    assert result.exit_code == 0, result.output
    content = json.loads(report.read_text())
    assert content.pop("made_by")["study"] == "peers"
    left_out = content.pop("llama.cpp")["left_out"]
    assert "reads GGUF files only" in left_out
    assert left_out in result.stderr
    assert [way.split(",")[0] for way in content] == [*["ours"] * 4, "transformers"]
    assert all(len(runs) == 1 and runs[0] > 0 for row in content.values() for runs in row["speeds"].values())
    assert picture.stat().st_size > 1000


def test_an_environment_that_cannot_be_made_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(study.REQUIREMENTS, "vllm", str(tmp_path / "vllm.whl"))
    with pytest.raises(UsageError, match="vllm cannot be installed: ") as raised:
        study.peer_python("vllm", tmp_path)
    assert len(str(raised.value).splitlines()) == 1
