"""`outrider-server`: options in, exit codes out (0 stopped, 1 its target broke, 2 the caller's mistake)."""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read as grpc is imported: it would log what we say in one line

import asyncio
import json
import signal
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from outrider_proto.errors import UsageError
from outrider_proto.files import write_atomically
from outrider_server.checking.finding import Finding
from outrider_server.cli.credentials import certs, keys_app
from outrider_server.config.config import ServerConfig
from outrider_server.config.file import as_toml
from outrider_server.config.options import configured
from outrider_server.rayserve.command import deploy

if TYPE_CHECKING:
    from outrider_server.rpc.server import Server

_GIVE_UP_S = 5.0
_SHOWN = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def root() -> None:
    """The server of Outrider: hosts a target model and verifies what edge clients draft."""


@app.command()
@configured
def serve(
    config: ServerConfig,
    ready_file: Annotated[Path | None, typer.Option(help="Write address, target, taps, metrics here as JSON.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more: --log-level info.")] = False,
) -> None:
    """Serve until SIGINT or SIGTERM; then finish what is under way and stop. A second signal ends it at once."""
    from outrider_server.telemetry.logs import start_logging

    start_logging(config.telemetry.log_format, "info" if verbose else config.telemetry.log_level)
    asyncio.run(_serve(config, ready_file))


@app.command()
@configured
def check(
    config: ServerConfig,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Try a configuration out without serving: files, addresses, certificates, target and drafters. Exit code 0, or 2
    when something would keep the server from starting."""
    findings: list[Finding] = []
    for finding in _findings(config):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{_SHOWN[finding.verdict]} {finding.subject}: {finding.text}")
    is_good = all(finding.verdict != "error" for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": is_good, "findings": [asdict(finding) for finding in findings]}))
    if not is_good:
        raise SystemExit(2)


app.command()(deploy)
app.command()(certs)
app.add_typer(keys_app, name="keys")


@app.command("config")
@configured
def show(config: ServerConfig) -> None:
    """Print the configuration that these options and this file make, as a file."""
    typer.echo(as_toml(config), nl=False)


def _findings(config: ServerConfig) -> Iterator[Finding]:
    from outrider_server.checking.environment import check_environment

    yield from check_environment(config)
    from outrider_server.checking.models import check_models  # torch and transformers: what takes time comes last

    yield from check_models(config)


async def _serve(config: ServerConfig, ready_file: Path | None) -> None:
    from outrider_server.rpc.server import Server  # torch and transformers: only when there is something to serve

    server = Server.build(config)
    await server.start()
    try:
        stop = StopSignals()  # before anybody is told that we are ready
        _announce(server, ready_file)
        if (why := await _broken(server, stop)) is not None:
            await _give_up(server, why)
        await stop.unless_second(server.drain(config.limits.drain_s))
    finally:
        await server.stop()


async def _broken(server: Server, stop: StopSignals) -> str | None:
    """Why the target cannot run any more; None once we are to stop."""
    breaking, stopping = asyncio.ensure_future(server.verifier.broken()), asyncio.ensure_future(stop.first.wait())
    try:
        await asyncio.wait((breaking, stopping), return_when=asyncio.FIRST_COMPLETED)
        return None if stopping.done() else breaking.result()
    finally:
        breaking.cancel()
        stopping.cancel()


async def _give_up(server: Server, why: str) -> NoReturn:
    """End with exit code 1, whatever still waits for a process that is gone; clients resume with the next server."""
    with suppress(OSError):
        typer.echo(f"outrider-server: {why}; start the server again", err=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(_GIVE_UP_S):
            await server.drain(0)
            await server.stop()
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
        _write_whole(ready_file, json.dumps(ready) + "\n")
    offers = [f"features for {', '.join(tap.family for tap in about.taps)}"]
    if server.verifier.drafts_with:
        offers.append(f"drafting with {', '.join(server.verifier.drafts_with)}")
    if server.bundles is not None:
        offers.append("edge bundles")
    if pace is not None:
        offers.append(f"paced as {pace.name} (emulated times: {pace.source})")
    line = f"outrider-server: ready on {server.address}, target {about.target_name}, {', '.join(offers)}"
    with suppress(OSError):  # a log on a full disk is no reason not to serve
        typer.echo(line, err=True)


def _write_whole(file: Path, text: str) -> None:
    """Whoever waits for the file never sees half of it. Raises UsageError."""
    try:
        write_atomically(file, text)
    except OSError as error:
        raise UsageError(f"ready_file={file}: cannot be written: {error.strerror}") from error


class StopSignals:
    """Listens from the moment it is made, on the running loop. SIGHUP, which would end the process, is only ignored:
    certificates and keys are read again whenever their files change."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._came)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)

    async def unless_second(self, work: Coroutine[None, None, None]) -> None:
        """Do it, or break it off at the second signal."""
        working, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self.second.wait())
        try:
            await asyncio.wait((working, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, hurry):
                task.cancel()
            await asyncio.gather(working, hurry, return_exceptions=True)
        if not working.cancelled():
            working.result()

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


def main() -> None:
    """Entry point of the console command."""
    app(prog_name="outrider-server")
