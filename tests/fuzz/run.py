"""Fuzzes targets at length, several at once, and says what it came to. `make fuzz` calls it.

    tests/fuzz/run.py [--seconds S] [--jobs N] [--out DIR] [TARGET ...]

DIR/corpus/TARGET grows from run to run, DIR/TARGET.log is what libFuzzer said, DIR/runs.jsonl a line for each run of a
target, and DIR/TARGET-crash-... an input that found something: `tests/fuzz/one.py TARGET FILE` repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "server")]

from fuzz_targets import NAMES  # noqa: E402 # after the path

GRACE_S = 120.0  # to import torch on a busy machine, and to end
_COVERED = re.compile(r"^#\d+\t(INITED|DONE|NEW|REDUCE|pulse) +cov: (\d+) ft: (\d+) corp: (\d+)", re.MULTILINE)
_STAT = re.compile(r"^stat::(\w+): +(\d+)", re.MULTILINE)
_HEAD = f"{'target':<15}{'executions':>12}{'a second':>10}{'branches':>10}{'new':>6}{'inputs':>8}{'MiB':>6}  findings"


@dataclass(frozen=True)
class Run:
    """Of one target. `branches` as libFuzzer counts them, `new` of them since the start; `peak_mib` of the process."""

    target: str
    executions: int
    seconds: float
    branches: int
    new: int
    inputs: int
    peak_mib: int
    findings: tuple[str, ...]

    def __str__(self) -> str:
        rate = self.executions / self.seconds
        figures = (
            f"{self.executions:>12,}{rate:>10,.0f}{self.branches:>10}{self.new:>6}{self.inputs:>8}{self.peak_mib:>6}"
        )
        return f"{self.target:<15}{figures}  {', '.join(self.findings) or '-'}"


def fuzz(target: str, seconds: int, out: Path) -> Run:
    """Raises TimeoutExpired for a target that does not come back."""
    corpus = out / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        "-print_final_stats=1",
        "-timeout=30",
        "-rss_limit_mb=4096",
        "-report_slow_units=9999",
    ]
    command = [sys.executable, str(HERE / "one.py"), target, *options, f"-artifact_prefix={out}/{target}-"]
    kept = HERE / "corpus" / target
    started, log = time.monotonic(), out / f"{target}.log"
    with log.open("wb") as file:
        ended = subprocess.run(
            [*command, str(corpus), *([str(kept)] if kept.is_dir() else [])],
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=seconds + GRACE_S,
            check=False,
        )
    return _read(target, log.read_text(errors="replace"), time.monotonic() - started, ended.returncode)


def _read(target: str, said: str, seconds: float, status: int) -> Run:
    covered = [(int(cov), int(corp)) for _, cov, _, corp in _COVERED.findall(said)] or [(0, 0)]
    stats = {name: int(value) for name, value in _STAT.findall(said)}
    findings = re.findall(r"Test unit written to \S*?([^/\s]+)$", said, re.MULTILINE)
    return Run(
        target,
        stats.get("number_of_executed_units", 0),
        seconds,
        covered[-1][0],
        covered[-1][0] - covered[0][0],
        covered[-1][1],
        stats.get("peak_rss_mb", 0),
        tuple(findings or ([f"ended with status {status}"] if status else [])),
    )


def _note(run: Run, out: Path) -> None:
    with (out / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **asdict(run)}) + "\n")


def _total(out: Path) -> int:
    return sum(json.loads(line)["executions"] for line in (out / "runs.jsonl").read_text().splitlines())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at once")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"))
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}; all of them")
    given = parser.parse_args(arguments)
    if strange := set(given.targets) - set(NAMES):
        parser.error(f"no target {', '.join(sorted(strange))}: there are {', '.join(NAMES)}")
    given.out.mkdir(parents=True, exist_ok=True)
    print(_HEAD, flush=True)
    runs = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for run in pool.map(lambda target: fuzz(target, given.seconds, given.out), given.targets or NAMES):
            print(run, flush=True)
            _note(run, given.out)
            runs.append(run)
    num_findings = sum(len(run.findings) for run in runs)
    executions = sum(run.executions for run in runs)
    print(f"{executions:,} executions, {num_findings} findings; {_total(given.out):,} executions in all runs so far")
    return 1 if num_findings else 0


if __name__ == "__main__":
    sys.exit(main())
