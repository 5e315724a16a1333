"""A real `outrider-server` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START_S = 120.0


class ServerFailed(RuntimeError):
    """The server does not serve; the message is what it said."""


@contextlib.contextmanager
def server_process(log: Path, *options: str) -> Iterator[int]:
    """`outrider-server serve` on a free port, which is yielded; ended on leaving. What it says goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("w") as said:
        ready_file = Path(folder) / "ready.json"
        command = [str(Path(sys.executable).with_name("outrider-server")), "serve", "--port", "0", *options]
        command += ["--ready-file", str(ready_file)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT) as process:
            try:
                _wait(process, ready_file, log)
                yield int(json.loads(ready_file.read_text())["address"].rpartition(":")[2])
            finally:
                process.terminate()


def _wait(process: subprocess.Popen[bytes], ready_file: Path, log: Path) -> None:
    give_up_at = time.monotonic() + START_S
    while not ready_file.exists():
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise ServerFailed(f"outrider-server did not come up:\n{log.read_text()}")
        time.sleep(0.05)
