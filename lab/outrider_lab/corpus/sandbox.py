"""Runs generated functions against their tests in throw-away processes with limits.

One process runs many jobs; a job that kills or hangs its process fails alone, and the jobs after it get a new one.
This stops accidents (endless loops, memory hogs, stray imports) of a small model's code, not a determined attacker.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources

MEMORY_BYTES = 512 * 2**20
SECONDS_PER_JOB = 1.0  # of wall time; eight tests of a right answer take microseconds
SECONDS_TO_START = 10.0


@dataclass(frozen=True, slots=True)
class SandboxJob:
    """Source that should define `function`; each case is an argument and the expected value, as Python literals."""

    source: str
    function: str
    cases: tuple[tuple[str, str], ...]


def run_jobs(jobs: Sequence[SandboxJob]) -> list[bool]:
    """Return whether each job passed all of its cases."""
    verdicts: list[bool] = []
    while len(verdicts) < len(jobs):
        verdicts += _run_process(jobs[len(verdicts) :])
    return verdicts


def _run_process(jobs: Sequence[SandboxJob]) -> list[bool]:
    """Return the verdicts of all jobs, or of those up to and including the one that ended the process."""
    # As text, not as a module: with -I and -S the process sees neither this package nor site-packages.
    program = (resources.files("outrider_lab") / "corpus" / "sandbox_main.py").read_text()
    limits = {"memory_bytes": MEMORY_BYTES, "seconds_per_job": SECONDS_PER_JOB}
    request = json.dumps({"limits": limits, "jobs": [asdict(job) for job in jobs]})
    with tempfile.TemporaryDirectory() as folder:
        # An empty environment and a folder of its own: nothing of the caller reaches generated code.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, env={},
        )  # fmt: skip
        # Jobs have their own timer; this limit is for a process that hangs elsewhere.
        try:
            output, _ = process.communicate(request.encode(), SECONDS_TO_START + SECONDS_PER_JOB * len(jobs))
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
    # Generated code may have written other lines, and a process that died has answered fewer jobs: the next one failed.
    answered = [line == b"1" for line in output.split(b"\n") if line in (b"0", b"1")][: len(jobs)]
    return answered if len(answered) == len(jobs) else [*answered, False]
