"""A real `outrider-server` in a process of its own."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

START_S = 120.0
_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")


class ServerFailed(RuntimeError):
    """The server does not serve; the message is what it said."""


@contextlib.contextmanager
def server_process(log: Path, *options: str) -> Iterator[int]:
    """`outrider-server serve` on a free port, which is yielded; ended on leaving. What it says goes to `log`."""
    command = [str(Path(sys.executable).with_name("outrider-server")), "serve", "--port", "0", *options]
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield _port(process, log)
        finally:
            process.terminate()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    give_up_at = time.monotonic() + START_S
    while not (found := _ADDRESS.search(log.read_text())):
        if process.poll() is not None:
            raise ServerFailed(log.read_text())
        if time.monotonic() > give_up_at:
            raise ServerFailed(f"the server was not ready after {START_S:g} s:\n{log.read_text()}")
        time.sleep(0.05)
    return int(found[1])
