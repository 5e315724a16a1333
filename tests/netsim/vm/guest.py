"""One boot of the guest: starts qemu, waits, reads the results, and always ends it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vm.image import GuestOrder, image
from vm.kernel_package import Kernel, KernelUnavailableError, debian_kernel
from vm.machine import command

TAIL_LINES = 80  # a panic's report is 50
GRACE_S = 10  # by which the watchdog outlives our own timeout


class GuestError(RuntimeError):
    """The script failed, or the guest panicked, hung or said nothing; the message ends with the console's end."""


@dataclass(frozen=True, slots=True)
class BootOutcome:
    """How a boot ended: the answers that came before, and the end of the console."""

    ended: str
    answers: list[dict[str, Any]]
    tail: str


def boot_for(orders: Sequence[GuestOrder], timeout_s: float, seed: int = 1) -> BootOutcome:
    """Boot a guest that runs `orders`, each in a process of its own, with the same `seed`."""
    with tempfile.TemporaryDirectory(prefix="outrider-vm-") as temporary:
        folder = Path(temporary)
        kernel = kernel_or_skip()
        initramfs = folder / "initramfs"
        initramfs.write_bytes(image(kernel, orders, seed))
        console, result = folder / "console", folder / "result"
        ended = _boot(command(kernel.image, initramfs, console, result), folder, timeout_s)
        return BootOutcome(ended, answers_in(_text(result)), _tail(_text(console)))


def result_of(script: Path, outcome: BootOutcome, number: int) -> dict[str, Any]:
    """The result of a boot's order, a call of `script`. Raises GuestError where it failed, or there is none."""
    if number >= len(outcome.answers):
        raise GuestError(f"{script.name}: no result; the guest {outcome.ended}; its console ends:\n{outcome.tail}")
    answer = outcome.answers[number]
    if "error" in answer:
        raise GuestError(f"{script.name}: failed in the guest:\n{answer['error']}\nits console ends:\n{outcome.tail}")
    result: dict[str, Any] = answer["result"]
    return result


def answers_in(sent: str) -> list[dict[str, Any]]:
    """The answers in what the guest sent (see runner.py), but for a last one that is not whole."""
    return [json.loads(zlib.decompress(base64.b64decode(line))) for line in sent.split("\n")[:-1]]


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


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _tail(console: str) -> str:
    return "\n".join(console.splitlines()[-TAIL_LINES:])
