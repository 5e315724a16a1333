"""`outrider-server` forked from a process that has everything imported: a start of its own takes eight seconds of a
processor for that."""

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO

import pytest

from outrider_bench.core import processes

_FORKS = multiprocessing.get_context("forkserver")


def _run(arguments: Sequence[str], log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.argv = ["outrider_server", *arguments]
    runpy.run_module("outrider_server", run_name="__main__")


class ForkedServer:
    """What `subprocess.Popen` would be for a command that begins with `python -m outrider_server`."""

    def __init__(self, command: Sequence[str], stdout: BinaryIO, stderr: BinaryIO) -> None:
        python, *module = command[:3]
        assert (python, module, stdout) == (sys.executable, ["-m", "outrider_server"], stderr)
        _FORKS.set_forkserver_preload(["outrider_server.rpc.server"])
        self._process = _FORKS.Process(target=_run, args=(command[3:], stdout.name), daemon=True)
        self._process.start()
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("outrider-server", timeout)
        return self._process.exitcode


@pytest.fixture(scope="module", autouse=True)
def forked_servers():
    """`embedded_server`, of the whole session, comes before this and is a command of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "Popen", ForkedServer)
        yield
