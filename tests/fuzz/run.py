"""Fuzzes targets at length, several at once: `tests/fuzz/run.py [--seconds S] [--jobs N] [--out DIR] [TARGET ...]`.

DIR/corpus/TARGET grows from run to run, DIR/TARGET.log is what libFuzzer said, and DIR/TARGET-crash-... an input that
found something: `tests/fuzz/one.py TARGET FILE` repeats it. `make fuzz` calls it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "server")]

from fuzz_targets import NAMES  # noqa: E402 # after the path

GRACE_S = 120.0  # to import torch on a busy machine, and to end


def fuzz(target: str, seconds: int, out: Path) -> list[str]:
    """Print a line about the run, return its findings. Raises TimeoutExpired for a target that does not come back."""
    corpus, kept, log = out / "corpus" / target, HERE / "corpus" / target, out / f"{target}.log"
    corpus.mkdir(parents=True, exist_ok=True)
    options = ["-print_final_stats=1", "-timeout=30", "-rss_limit_mb=4096", "-report_slow_units=9999"]
    options += [f"-max_total_time={seconds}", f"-artifact_prefix={out}/{target}-"]
    corpora = [str(corpus), *([str(kept)] if kept.is_dir() else [])]
    command = [sys.executable, str(HERE / "one.py"), target, *options, *corpora]
    with log.open("wb") as file:
        ended = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=seconds + GRACE_S, check=False)
    said = log.read_text(errors="replace")
    findings = re.findall(r"Test unit written to \S*?([^/\s]+)$", said, re.MULTILINE)
    if ended.returncode and not findings:
        findings = [f"ended with status {ended.returncode}"]
    executions = re.search(r"^stat::number_of_executed_units: +(\d+)", said, re.MULTILINE)
    print(f"{target:<15}{executions[1] if executions else 0:>12}  {', '.join(findings) or '-'}", flush=True)
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at once")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"))
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}; all of them")
    given = parser.parse_args()
    if strange := {*given.targets} - {*NAMES}:
        parser.error(f"no target {', '.join(strange)}: there are {', '.join(NAMES)}")
    print(f"{'target':<15}{'executions':>12}  findings", flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        found = pool.map(lambda target: fuzz(target, given.seconds, given.out), given.targets or NAMES)
        return 1 if any(list(found)) else 0


if __name__ == "__main__":
    sys.exit(main())
