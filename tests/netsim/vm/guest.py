"""One boot of the guest: starts qemu, waits, reads the result, and always ends it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from vm.image import image
from vm.kernel_package import Kernel, KernelUnavailableError, debian_kernel
from vm.machine import command

TIMEOUT_S = 400.0
TAIL_LINES = 80  # a panic's report is 50
GRACE_S = 10  # by which the watchdog outlives our own timeout


class GuestError(RuntimeError):
    """The script failed, or the guest panicked, hung or said nothing; the message ends with the console's end."""


def measured_in_guest(arguments: dict[str, Any], seed: int) -> dict[str, Any]:  # Any: JSON
    """Boot a guest, and return what the script's `main` returns there. Raises GuestError."""
    with tempfile.TemporaryDirectory(prefix="outrider-vm-") as temporary:
        folder = Path(temporary)
        kernel = kernel_or_skip()
        initramfs = folder / "initramfs"
        initramfs.write_bytes(image(kernel, arguments, seed))
        console, answer = folder / "console", folder / "answer"
        ended = _boot(command(kernel.image, initramfs, console, answer), folder)
        tail = "\n".join(_text(console).splitlines()[-TAIL_LINES:])
        if not _text(answer).endswith("\n"):
            raise GuestError(f"no result; the guest {ended}; its console ends:\n{tail}")
        said: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(_text(answer))))
        if "error" in said:
            raise GuestError(f"the script failed in the guest:\n{said['error']}\nits console ends:\n{tail}")
        result: dict[str, Any] = said["result"]
        return result


def kernel_or_skip() -> Kernel:
    """Without a network a guest cannot be had: the test that asks for one skips, and says so."""
    try:
        return debian_kernel()
    except KernelUnavailableError as error:
        pytest.skip(str(error))


def _boot(qemu: list[str], folder: Path) -> str:
    """Runs qemu to its end or ours. `timeout` ends it even where we are killed before we can."""
    watchdog = ["timeout", "--signal=KILL", str(TIMEOUT_S + GRACE_S)]
    with (folder / "stderr").open("w+") as errors:
        process = subprocess.Popen(
            [*watchdog, *qemu], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
        )
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"hung: not done in {TIMEOUT_S:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        return f"ended with {code} {errors.read().strip()}".strip()


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
