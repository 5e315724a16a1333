"""The fuzzer, for a moment, on every target that is quick to start; `make fuzz` takes its time, and all of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_targets import NAMES

from ..marks import slow

pytest.importorskip("atheris", reason="atheris is not installed: it has no wheel for this system")
HERE = Path(__file__).parent
MOST_S = 2  # of fuzzing; whichever comes first, it ends well
RUNS = 5000
# A child's peak memory begins at its parent's on Linux, and libFuzzer takes that for its own size: under a test run
# that once held 2 GB it would fail. A single allocation of as much is still a finding.
MEMORY = ("-rss_limit_mb=0", "-malloc_limit_mb=2048")
# Those that import torch, transformers or FastAPI.
SLOW_TO_START = ("session", "bundle-file", "gateway-body", "config", "gguf", "schema", "template", "keys-file")
OTHERS = [name for name in NAMES if name not in ("client-frame", *SLOW_TO_START)]


@pytest.mark.parametrize("name", ["client-frame", *slow(*OTHERS)])
def test_a_short_run_finds_nothing(name, tmp_path):
    options = [f"-runs={RUNS}", f"-max_total_time={MOST_S}", "-seed=1", "-timeout=120", *MEMORY]
    command = [sys.executable, str(HERE / "one.py"), name, *options, f"-artifact_prefix={tmp_path}/", str(tmp_path)]
    ended = subprocess.run([*command, str(HERE / "corpus" / name)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "DONE" in ended.stderr
