"""The command: findings out, one a line, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from outrider_server.checking.finding import Finding
from outrider_server.config.config import ServerConfig

_SHOWN = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}


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


def _findings(config: ServerConfig) -> Iterator[Finding]:
    from outrider_server.checking.environment import look_around

    yield from look_around(config)
    from outrider_server.checking.models import try_models  # torch and transformers: what takes time comes last

    yield from try_models(config)
