"""The console commands start quickly: help, the version and usage errors import nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

SCRIPTS: dict[str, str] = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
    "scripts"
]
HEAVY = (
    "fastapi",
    "google.protobuf",
    "grpc",
    "matplotlib",
    "numpy",
    "pandas",
    "pyroute2",
    "ray",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
)

# Calls main() with each list of arguments in one process, and reports exit code, output and new modules of each.
PROBE = """
import contextlib, importlib, io, json, sys
from typer.main import get_command

def commands(command, path=()):
    yield path
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))

module, function, heavy = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
main = getattr(importlib.import_module(module), function)
app = importlib.import_module(module.rpartition(".")[0] + ".app").app
cases = [["--version"], ["no-such-command"]]
for path in commands(get_command(app)):
    cases += [[*path, "--help"], [*path, "--no-such-option"]]
reports = []
for arguments in cases:
    sys.argv = ["command", *arguments]
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    loaded = [name for name in heavy if name in sys.modules]
    reports.append({"arguments": " ".join(arguments), "code": code, "out": out.getvalue(), "loaded": loaded})
print(json.dumps(reports))
"""


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_and_usage_errors_import_nothing_heavy(script):
    module, _, function = SCRIPTS[script].partition(":")
    command = [sys.executable, "-c", PROBE, module, function, ",".join(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    reports = {report["arguments"]: report for report in json.loads(done.stdout)}
    assert {name: report["loaded"] for name, report in reports.items() if report["loaded"]} == {}
    codes = {name: report["code"] for name, report in reports.items()}
    assert codes == {name: 0 if name.endswith(("--help", "--version")) else 2 for name in reports}
    assert reports["--version"]["out"] == f"outrider {version('outrider')}\n"
