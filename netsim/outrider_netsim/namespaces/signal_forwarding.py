"""Forward signals to the command that we run, each once.

A terminal's Ctrl-C reaches every process of its foreground group, the command included, so only signals that a process
sent to us alone (kill, a supervisor) are forwarded. The kernel tells them apart in the signal's code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator

from outrider_netsim.namespaces import syscalls

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@contextlib.contextmanager
def forward_signals(pass_on: Callable[[int], None]) -> Iterator[None]:
    """Call `pass_on` from the event loop for each signal sent to us; none has its usual effect on us.

    Outside the main thread nothing is forwarded.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in FORWARDED}
    # Handlers besides the signalfd: a signal that another thread takes does not appear there. Its code is lost, so it
    # is always forwarded, and a program with such threads may send its command Ctrl-C twice.
    for number in FORWARDED:
        loop.add_signal_handler(number, pass_on, number)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    source = syscalls.signal_file(FORWARDED)
    loop.add_reader(source, _pass_on_pending, source, pass_on)
    try:
        yield
    finally:
        loop.remove_reader(source)
        # Too late for the command; discarded, as they were not meant for us.
        _pass_on_pending(source, lambda _: None)
        os.close(source)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _pass_on_pending(source: int, pass_on: Callable[[int], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        while record := os.read(source, syscalls.SIGNALFD_RECORD_BYTES):
            number, _, code = struct.unpack_from("Iii", record)
            if code != syscalls.SI_KERNEL:
                pass_on(number)
