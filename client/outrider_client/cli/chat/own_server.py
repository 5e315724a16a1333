"""A server of the chat's own, where none listens: another process, started and stopped with the chat."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from outrider_client.core.config import ClientConfig
from outrider_drafters.checkpoints.catalog import catalog
from outrider_drafters.checkpoints.target_weights import find_model
from outrider_models.core.embedded import EMBEDDED
from outrider_proto.addresses import host_of, port_of
from outrider_proto.errors import LinkError

_STOP_S = 10.0


def needs_own_server(config: ClientConfig) -> bool:
    """Tell whether nothing listens at the default address for a chat about a model of ours. Raises UsageError."""
    is_ours = config.target == EMBEDDED or config.target in catalog()
    if not is_ours or config.server != ClientConfig().server or config.mode == "offline" or config.offline_start:
        return False
    try:
        socket.create_connection((host_of(config.server), port_of(config.server)), timeout=1).close()
    except ConnectionRefusedError:
        if config.target in catalog():
            find_model(str(config.target))
        return True
    except OSError:
        return False  # the client's own attempt says why
    return False


@contextmanager
def own_server(config: ClientConfig) -> Iterator[str]:
    """Serve the configuration's target and drafters on a free port, and yield the address. Raises LinkError."""
    drafters = [option for drafter in config.drafters if drafter is not None for option in ("--drafter", str(drafter))]
    with tempfile.TemporaryDirectory(prefix="outrider-chat-") as folder:
        ready, log = Path(folder) / "ready.json", Path(folder) / "log"
        options = ["--target", str(config.target), *drafters, "--port", "0", "--ready-file", str(ready)]
        with log.open("wb") as output:
            # In a session or process group of its own: Ctrl-C in the terminal ends an answer, not the server.
            process = subprocess.Popen(
                [sys.executable, "-m", "outrider_server", "serve", *options],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )  # fmt: skip
        # And so a closed terminal does not end it, unless we do.
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has one
        before = {number: signal.signal(number, _leave) for number in numbers}
        try:
            yield _address(process, ready, log)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for number, handler in before.items():
                signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _address(process: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    """Wait until the server is ready. It has no deadline: loading a model takes as long as the disk does."""
    while not ready.exists():
        if process.poll() is not None:
            lines = log.read_text(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
            raise LinkError(f"no server listens, and one for this chat does not start: {lines[-1]}")
        time.sleep(0.05)
    return str(json.loads(ready.read_text())["address"])
