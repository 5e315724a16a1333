"""One run of `outrider-server serve`: from loading the target to the exit, with the signals that end it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

import typer

from outrider_proto.errors import UsageError
from outrider_proto.files import write_atomically
from outrider_server.config.config import ServerConfig
from outrider_server.rpc.server import Server

_GIVE_UP_S = 5.0
_Result = TypeVar("_Result")


def run(config: ServerConfig, ready_file: Path | None) -> None:
    """Serve until a signal comes or the target breaks."""
    asyncio.run(_serve(config, ready_file))


async def _serve(config: ServerConfig, ready_file: Path | None) -> None:
    server = Server.build(config)
    # What has been loaded stays: without this every full collection would walk through all of torch again, which took a
    # twentieth of a busy server's time (measured).
    gc.collect()
    gc.freeze()
    await server.start()
    try:
        # Before the ready file: whoever sees it may send a signal at once.
        stop = StopSignals()
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
        typer.echo(f"outrider-server: {why}; start the server again", err=True)
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
        try:
            write_atomically(ready_file, json.dumps(ready) + "\n")
        except OSError as error:
            raise UsageError(f"ready_file={ready_file}: cannot be written: {error.strerror}") from error
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
        typer.echo(line, err=True)


class StopSignals:
    """Listens for SIGINT and SIGTERM, on the running loop, from its creation on."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._came)
            # SIGHUP would end the process; certificates and keys are re-read whenever their files change.
            loop.add_signal_handler(signal.SIGHUP, lambda: None)
        except NotImplementedError:  # the loops of Windows
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self._came))

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
