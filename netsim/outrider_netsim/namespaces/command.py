"""Run a command in this process's own network, for the proxy engine, and forward signals to commands. Any OS.

A terminal's Ctrl-C reaches every process of its foreground group, the command included, so only signals that a process
sent to us alone (kill, a supervisor) are forwarded. Linux tells them apart in the signal's code; elsewhere every SIGINT
counts as the terminal's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from outrider_netsim.namespaces import syscalls

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
FORWARDED = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))  # Windows has two


async def run_copies(argv: Sequence[str], environments: Sequence[Mapping[str, str]]) -> list[int]:
    """Run a command once for each environment, all at once; return the exit statuses (128 + n for signal n).

    It has our stdin, stdout and folder. Signals sent to us meanwhile are forwarded to all copies. On Linux they end
    when we do, however we end. Raises OSError when the command cannot be executed.
    """
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int) -> None:
        for process in running:
            process.send_signal(number)

    with forward_signals(pass_on):
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
    if sys.platform != "linux":
        return subprocess.Popen(argv, env=env)
    # A script prepares the child, not a preexec_fn: that takes fork, in which gRPC's handlers crash now and then.
    read, write = os.pipe()
    with open(read) as failure:
        with open(write, "w"):
            script = [sys.executable, "-I", "-S", syscalls.__file__, str(write), str(os.getpid())]
            process = subprocess.Popen([*script, *argv], env=env, pass_fds=[write])
        number = failure.read()
    if number:
        process.wait()
        raise OSError(int(number), os.strerror(int(number)), argv[0])
    return process


@contextlib.contextmanager
def forward_signals(pass_on: Callable[[int], None]) -> Iterator[None]:
    """Call `pass_on` from the event loop for each signal sent to us; none has its usual effect on us.

    Outside the main thread nothing is forwarded.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as undo:
        # Handlers besides the signalfd: a signal that another thread takes does not appear there. Its code is lost, so
        # it is always forwarded, and a program with such threads may send its command Ctrl-C twice.
        for number in FORWARDED:
            undo.callback(signal.signal, number, signal.getsignal(number))
            loop.add_signal_handler(number, pass_on, number)
            undo.callback(loop.remove_signal_handler, number)
        if sys.platform == "linux":
            _read_codes(pass_on, undo)
        else:
            loop.add_signal_handler(signal.SIGINT, lambda: None)
        yield


def _read_codes(pass_on: Callable[[int], None], undo: contextlib.ExitStack) -> None:
    loop = asyncio.get_running_loop()
    undo.callback(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED))
    source = syscalls.signal_file(FORWARDED)
    undo.callback(os.close, source)
    # Those too late for the command are discarded, as they were not meant for us.
    undo.callback(_pass_on_pending, source, lambda _: None)
    loop.add_reader(source, _pass_on_pending, source, pass_on)
    undo.callback(loop.remove_reader, source)


def _pass_on_pending(source: int, pass_on: Callable[[int], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        while record := os.read(source, syscalls.SIGNALFD_RECORD_BYTES):
            number, _, code = struct.unpack_from("Iii", record)
            if code != syscalls.SI_KERNEL:
                pass_on(number)


async def process_ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process ends by itself."""
    if sys.platform != "linux":
        await asyncio.to_thread(process.wait)
        return
    handle = os.pidfd_open(process.pid)
    try:
        await readable(handle)
    finally:
        os.close(handle)


async def readable(descriptor: int) -> None:
    """Wait until a descriptor is readable."""
    # Not in a thread: it would take the signals that commands are to get.
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
