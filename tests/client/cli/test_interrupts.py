"""Ctrl-C while the command is being imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Runs the command, interrupted where it begins to import this module.
PROBE = """
import os, signal, sys

def find_spec(name, path, target=None):
    if name == interrupted:
        os.kill(os.getpid(), signal.SIGINT)

interrupted = sys.argv.pop(1)
sys.meta_path.insert(0, type("Finder", (), {"find_spec": staticmethod(find_spec)}))
signal.signal(signal.SIGINT, getattr(signal, sys.argv.pop(1)))
from outrider_client.cli.__main__ import main
main()
"""


def run(interrupted: str, handler: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROBE, interrupted, handler, *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)


@pytest.mark.parametrize("interrupted", ["typer", "torch.nn", "grpc"])
def test_ctrl_c_in_the_first_moments_leaves_no_traceback(interrupted):
    done = run(interrupted, "default_int_handler", "generate", "hi", "--mode", "offline")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_job_that_ignores_it_goes_on_ignoring_it():
    done = run("typer", "SIG_IGN", "--version")
    assert (done.returncode, done.stderr) == (0, "")
