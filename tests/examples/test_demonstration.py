"""The demo itself: it ends, and its report has the answers of the target's own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.timeout(900)  # several processes begin with torch: on a busy machine that takes minutes
@pytest.mark.parametrize("engine", ["auto", "proxy"])
def test_the_demo_ends_by_itself_with_the_targets_own_answers(tmp_path, engine):
    options = ["--target", "embedded", "--engine", engine, "--count", "2", "--cut", "1", "--outage-s", "1"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py"), *options, "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=840, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "demo.json").read_text())
    assert len(report["outages"]) == 1
    assert [answer["mode"] for answer in report["answers"]] == ["stream", "auto", "auto", "stream", "auto"]
    assert all(answer["is_targets_own"] and answer["token_ids"] for answer in report["answers"])
    assert report["link"].startswith("emulated (TCP relay)" if engine == "proxy" else "emulated (")
    assert {"command", "versions", "processor"} <= report["made_by"].keys()
    assert (tmp_path / "demo.png").stat().st_size > 10_000
