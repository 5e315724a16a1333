"""One boot of the guest for one script: starts qemu, waits, reads the result, and always ends it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vm.image import image
from vm.kernel_package import Kernel, KernelUnavailableError, debian_kernel
from vm.machine import command

TAIL_LINES = 80  # a panic's report is 50
GRACE_S = 10  # by which the watchdog outlives our own timeout


class GuestError(RuntimeError):
    """The script failed, or the guest panicked, hung or said nothing; the message ends with the console's end."""


# Any: the result is the script's JSON, and its reader knows what is in it.
def run_in_guest(script: Path, arguments: dict[str, Any], timeout_s: float, seed: int = 1) -> dict[str, Any]:
    """What `main(arguments)` of `script` returned in a guest booted for it; `seed` decides all of the guest's chance.

    `timeout_s` is in seconds of this machine. Raises GuestError. Skips the test where apt cannot give the kernel.
    """
    with tempfile.TemporaryDirectory(prefix="outrider-vm-") as temporary:
        folder = Path(temporary)
        kernel = kernel_or_skip()
        initramfs = folder / "initramfs"
        initramfs.write_bytes(image(kernel, script, arguments, seed))
        console, result = folder / "console", folder / "result"
        outcome = _boot(command(kernel.image, initramfs, console, result), folder, timeout_s)
        return _result(script, outcome, _text(result), _tail(_text(console)))


def check_in_guest(
    script: Path, arguments: dict[str, Any], timeout_s: float, check: Callable[[dict[str, Any]], None]
) -> None:
    """Run and `check` the result; where an assertion fails, once more with other luck.

    With one seed a guest measures the same until the kernel, Python, qemu or our code change; each such change is a
    fresh draw, which may miss a statistical bound by chance. What is wrong misses it again.
    """
    try:
        check(run_in_guest(script, arguments, timeout_s))
    except AssertionError as error:
        print(f"with seed 1: {error}")
        check(run_in_guest(script, arguments, timeout_s, seed=2))


def kernel_or_skip() -> Kernel:
    """Without a network a guest cannot be had: the test that asks for one skips, and says so."""
    try:
        return debian_kernel()
    except KernelUnavailableError as error:
        pytest.skip(str(error))


def _boot(qemu: list[str], folder: Path, timeout_s: float) -> str:
    """Runs qemu to its end or ours. `timeout` ends it even where we are killed before we can."""
    watchdog = ["timeout", "--signal=KILL", str(timeout_s + GRACE_S)]
    with (folder / "stderr").open("w+") as errors:
        process = subprocess.Popen(
            [*watchdog, *qemu], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return f"hung: not done in {timeout_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        return f"ended with {code} {errors.read().strip()}".strip()


def _result(script: Path, outcome: str, answer: str, tail: str) -> dict[str, Any]:
    try:
        found = json.loads(answer)
    except ValueError:
        raise GuestError(f"{script.name}: no result; the guest {outcome}; its console ends:\n{tail}") from None
    if "error" in found:
        raise GuestError(f"{script.name}: failed in the guest:\n{found['error']}\nits console ends:\n{tail}")
    result: dict[str, Any] = found["result"]
    return result


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _tail(console: str) -> str:
    return "\n".join(console.splitlines()[-TAIL_LINES:])
