"""The command `outrider-server`. Exit codes: 0 stopped, 1 the target broke, 2 a usage error."""

from __future__ import annotations

import os

# grpc reads this when it is imported; its own log would repeat what we say in one line.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from outrider_proto.options.command import Program, Version, with_options
from outrider_proto.options.values import as_toml
from outrider_proto.terminal.text import print_line
from outrider_server.checking.environment import Finding, check_environment
from outrider_server.cli.credentials import certs, keys_app
from outrider_server.config.config import ServerConfig
from outrider_server.config.file import load_config
from outrider_server.rayserve.command import deploy

_SHOWN = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}
app = typer.Typer(cls=Program, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _server(version: Version = False) -> None:
    """Host a target model and verify what edge clients draft."""


@app.command()
@with_options(ServerConfig, load_config)
def serve(
    config: ServerConfig,
    ready_file: Annotated[
        Path | None, typer.Option(help="File to write address, target, taps and metrics to, as JSON, once ready.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more: short for --log-level info.")] = False,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish running requests and stop. A second signal stops at once."""
    from outrider_server.telemetry.logs import start_logging

    start_logging(config.telemetry.log_format, "info" if verbose else config.telemetry.log_level)
    from outrider_server.cli.serving import run

    run(config, ready_file)


@app.command()
@with_options(ServerConfig, load_config, shown=lambda option: option.name in ("target", "dtype"))
def check(
    config: ServerConfig,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")] = False,
) -> None:
    """Check a configuration without serving: files, addresses, certificates, target and drafters.

    Exit code 0, or 2 if something would keep the server from starting.
    """
    findings: list[Finding] = []
    for finding in _findings(config):
        findings.append(finding)
        if not as_json:
            print_line(f"{_SHOWN[finding.verdict]} {finding.subject}: {finding.text}")
    is_good = all(finding.verdict != "error" for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": is_good, "findings": [asdict(finding) for finding in findings]}))
    if not is_good:
        raise SystemExit(2)


app.command()(deploy)
app.command()(certs)
app.add_typer(keys_app, name="keys")


@app.command("config")
@with_options(ServerConfig, load_config, shown=lambda _: False)
def show(config: ServerConfig) -> None:
    """Print the configuration that this file makes, with every key and its meaning, as a TOML file."""
    typer.echo(as_toml(config), nl=False)


def _findings(config: ServerConfig) -> Iterator[Finding]:
    yield from check_environment(config)
    from outrider_server.checking.models import check_models  # torch and transformers: slow checks come last

    yield from check_models(config)


def main() -> None:
    """Entry point of the console command."""
    app(prog_name="outrider-server")
