"""One run of `outrider-server serve`: from loading the target to the exit, with the signals that end it."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from outrider_proto.files import write_for_user
from outrider_proto.terminal.text import print_line
from outrider_server.config.config import ServerConfig
from outrider_server.rpc.server import Server

_GIVE_UP_S = 5.0
_TO_END_S = 2.0  # after the time to drain, for what ends by itself
_LAST_WORDS_S = 1.0  # after a second signal
_LONGEST_S = 1e6  # that a socket can wait
_Result = TypeVar("_Result")


def run(config: ServerConfig, ready_file: Path | None) -> None:
    """Serve until a signal comes or the target breaks."""
    # While it loads, a signal ends the process by the system's default: Python's handler would wait for the libraries.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(_serve(config, ready_file))


async def _serve(config: ServerConfig, ready_file: Path | None) -> None:
    server = Server.build(config)
    # What has been loaded stays: without this every full collection would walk through all of torch again, which took a
    # twentieth of a busy server's time (measured).
    gc.collect()
    gc.freeze()
    with suppress(AttributeError, OSError):  # glibc keeps what loading has freed
        ctypes.CDLL(None).malloc_trim(0)
    await server.start()
    try:
        # Before the ready file: whoever sees it may send a signal at once.
        stop = StopSignals(config.limits.drain_s)
        _announce(server, ready_file)
        if (why := await _unless(stop.first, server.verifier.broken())) is not None:
            await _give_up(server, why)
        await _unless(stop.second, server.drain(config.limits.drain_s))
    finally:
        await server.stop()


async def _unless(signaled: asyncio.Event, work: Coroutine[None, None, _Result]) -> _Result | None:
    """Return the result of `work`; break it off at a signal, and return None."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(signaled.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
    return None if working.cancelled() else working.result()


async def _give_up(server: Server, why: str) -> NoReturn:
    """Exit with code 1, whatever still waits for a dead process; clients resume with the next server."""
    with suppress(OSError):
        print_line(f"outrider-server: {why}; start the server again", err=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(_GIVE_UP_S):
            await server.drain(0)
            await server.stop()
    # Not sys.exit: threads stuck in a collective would keep the interpreter alive.
    os._exit(1)


def _announce(server: Server, ready_file: Path | None) -> None:
    about, pace = server.verifier.describe(), server.verifier.pace
    if ready_file is not None:
        ready = {
            "address": server.address,
            "target": about.target_name,
            "taps": [{"fingerprint": tap.fingerprint, "family": tap.family, "width": tap.width} for tap in about.taps],
            "pace": pace and pace.name,
            "metrics": server.reporter.metrics_address,
        }
        write_for_user(ready_file, json.dumps(ready) + "\n", "ready_file")
    offers = [f"features for {', '.join(tap.family for tap in about.taps)}"]
    if server.verifier.drafts_with:
        offers.append(f"drafting with {', '.join(server.verifier.drafts_with)}")
    if server.bundles is not None:
        offers.append("edge bundles")
    if pace is not None:
        offers.append(f"paced as {pace.name} (emulated times: {pace.source})")
    line = f"outrider-server: ready on {server.address}, target {about.target_name}, {', '.join(offers)}"
    # A full disk under the log must not keep us from serving.
    with suppress(OSError):
        print_line(line, err=True)


class StopSignals:
    """Listens for SIGINT and SIGTERM from its creation on, in a thread of its own.

    The process ends `drain_s` + 2 s after the first signal, and a second after the second one, whatever hangs then.
    """

    def __init__(self, drain_s: float) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._loop, self._drain_s = asyncio.get_running_loop(), drain_s
        # By Python's own handlers and the loop's, a signal would wait for the main thread.
        self._signals, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        # SIGHUP would end the process; certificates and keys are re-read whenever their files change.
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), _do_nothing)
                # The interpreter ends with the system's defaults: a late signal would kill what has ended well.
                atexit.register(signal.signal, getattr(signal, name), signal.SIG_IGN)
        threading.Thread(target=self._listen, name="outrider-signals", daemon=True).start()

    def _listen(self) -> None:
        events = [(self.second, _LAST_WORDS_S), (self.first, self._drain_s + _TO_END_S)]
        while True:
            try:
                number = self._signals.recv(1)[0]
            except TimeoutError:
                break
            if number in (signal.SIGINT, signal.SIGTERM) and events:
                event, seconds = events.pop()
                # Before the loop is asked: it may be what hangs.
                self._signals.settimeout(min(seconds, _LONGEST_S))
                with suppress(RuntimeError):  # it has ended, and a thread that hangs keeps the process
                    self._loop.call_soon_threadsafe(event.set)
        with suppress(OSError):
            os.write(2, b"outrider-server: what was under way does not end; ending without it\n")
        os._exit(0)


def _do_nothing(number: int, frame: object) -> None:
    """Take a signal that is heard elsewhere."""
