"""Run a command in this process's own network, for the proxy engine. Any OS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # where the kernel does not say who sent a signal


async def run_copies(argv: Sequence[str], environments: Sequence[Mapping[str, str]]) -> list[int]:
    """Run a command once for each environment, all at once; return the exit statuses (128 + n for signal n).

    It has our stdin, stdout and folder. Signals sent to us meanwhile are forwarded to all copies. On Linux they end
    when we do, however we end. Raises OSError when the command cannot be executed.
    """
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int) -> None:
        for process in running:
            process.send_signal(number)

    with _signals_to(pass_on):
        try:
            running.extend(_started(argv, os.environ | dict(env)) for env in environments)
            for process in running:
                await process_ended(process)
        finally:
            for process in running:
                # No effect if it has ended.
                process.kill()
                process.wait()
    return [128 - process.returncode if process.returncode < 0 else process.returncode for process in running]


def _started(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process and return once it is executing the command."""
    return subprocess.Popen(argv, env=env, preexec_fn=_preparation())  # noqa: PLW1509 - it only makes system calls


def _signals_to(pass_on: Callable[[int], None]) -> contextlib.AbstractContextManager[None]:
    if sys.platform != "linux":
        return _handlers(pass_on)
    from outrider_netsim.namespaces.signal_forwarding import forward_signals

    return forward_signals(pass_on)


@contextlib.contextmanager
def _handlers(pass_on: Callable[[int], None]) -> Iterator[None]:
    """Forward signals except Ctrl-C, which reaches the command from the terminal itself."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    for number in PASSED_ON:
        loop.add_signal_handler(number, pass_on, number)
    try:
        yield
    finally:
        for number in (signal.SIGINT, *PASSED_ON):
            loop.remove_signal_handler(number)


def _preparation() -> Callable[[], None] | None:
    """Return what the child does before it executes the command: unblock signals, and die with us."""
    if sys.platform != "linux":
        return None
    # Imported before the fork: the child may inherit the import lock from another thread, and would hang.
    from outrider_netsim.namespaces.processes import die_with_parent
    from outrider_netsim.namespaces.signal_forwarding import FORWARDED

    parent = os.getpid()

    def prepare() -> None:
        # A mask survives exec, and forward_signals() blocks these in us.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        die_with_parent(signal.SIGKILL, parent)

    return prepare


async def process_ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process ends by itself."""
    if sys.platform != "linux":
        await asyncio.to_thread(process.wait)
        return
    from outrider_netsim.namespaces.namespaces import readable

    handle = os.pidfd_open(process.pid)
    try:
        await readable(handle)
    finally:
        os.close(handle)
