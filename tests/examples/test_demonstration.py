"""The demo itself: it ends, and its report has the answers of the target's own."""

import json
import subprocess
import sys

import pytest
from forked_server import ForkedServer
from typer import Typer
from typer.testing import CliRunner

from outrider_bench.core import processes

from .conftest import EXAMPLES


@pytest.mark.slow
@pytest.mark.timeout(900)  # several processes begin with torch: on a busy machine that takes minutes
@pytest.mark.parametrize("engine", ["auto", "proxy"])
def test_the_demo_ends_by_itself_with_the_targets_own_answers(tmp_path, engine, example, monkeypatch):
    options = ["--target", "embedded", "--engine", engine, "--count", "2", "--cut", "1", "--outage-s", "1"]
    options += ["--out", str(tmp_path)]
    if engine == "auto":
        command = [sys.executable, str(EXAMPLES / "demo.py"), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=840)
        assert done.returncode == 0, done.stdout + done.stderr
    else:  # here, which spares a processor the start of two processes
        monkeypatch.setattr(processes, "Popen", ForkedServer)
        (demo := Typer()).command()(example("demo").main)
        assert (done := CliRunner().invoke(demo, options)).exit_code == 0, done.output
    report = json.loads((tmp_path / "demo.json").read_text())
    assert len(report["outages"]) == 1
    assert [answer["mode"] for answer in report["answers"]] == ["stream", "auto", "auto", "stream", "auto"]
    assert all(answer["is_targets_own"] and answer["token_ids"] for answer in report["answers"])
    assert report["link"].startswith("emulated (TCP relay)" if engine == "proxy" else "emulated (")
    assert {"command", "versions", "processor"} <= report["made_by"].keys()
    assert (tmp_path / "demo.png").stat().st_size > 10_000
